// What readers without a mouse or without sight need, and the theme lacks: names of the side bars, code and
// tables that can be scrolled with the keyboard, and a heading of the search page.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  for (const one of document.querySelectorAll("pre, .table-wrapper, .wide")) {
    one.setAttribute("tabindex", "0");
  }
  for (const one of document.querySelectorAll(".wide")) {
    one.setAttribute("role", "region");
    one.setAttribute("aria-label", `${one.querySelector("img").alt}, scrolls sideways`);
  }
  const results = document.querySelector("#search-results");
  if (results && !document.querySelector("h1")) {
    const heading = document.createElement("h1");
    heading.textContent = "Search";
    results.before(heading);
  }
});
