// Numbers and elements; all text is set as text, since names may be anything.

/** A number in at most four characters or so. */
export function count(value) {
  if (value == null || Number.isNaN(value)) {
    return "–";
  }
  for (const [factor, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= factor) {
      const scaled = value / (unit === "k" ? 1e3 : factor);
      return `${scaled.toFixed(scaled < 100 ? 1 : 0)}${unit}`;
    }
  }
  if (Number.isInteger(value) || value >= 100) {
    return Math.round(value).toLocaleString("en");
  }
  return value.toFixed(value < 10 ? 1 : 0);
}

/** A mean of whole numbers. */
export function mean(value) {
  return value < 100 ? value.toFixed(1) : count(value);
}

export function seconds(value) {
  if (value == null || Number.isNaN(value)) {
    return "–";
  }
  if (value === 0) {
    return "0";
  }
  if (value < 0.0995) {
    const ms = value * 1000;
    return `${ms < 9.95 ? ms.toFixed(1) : ms.toFixed(0)} ms`;
  }
  if (value < 1) {
    return `${(value * 1000).toFixed(0)} ms`;
  }
  return value < 120 ? `${value.toFixed(value < 10 ? 1 : 0)} s` : `${(value / 60).toFixed(0)} min`;
}

export function bytes(value) {
  return value == null ? "" : `${count(value / 2 ** 20)} MiB`;
}

export function percent(share) {
  const value = share * 100;
  return `${value > 0 && value < 10 && !Number.isInteger(value) ? value.toFixed(1) : Math.round(value)} %`;
}

/**
 * Makes an element.
 *
 * @param kind Its name, with its classes after dots.
 * @param children Its children; strings become text.
 */
export function element(kind, ...children) {
  const [name, ...classes] = kind.split(".");
  const made = document.createElement(name);
  made.classList.add(...classes);
  made.append(...children.filter((child) => child != null));
  return made;
}
