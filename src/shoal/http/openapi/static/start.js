"use strict";

// Shows a document, and lets the reader choose if there are several.

const viewer = document.getElementById("viewer");
const documents = JSON.parse(viewer.dataset.documents);

function show(url) {
  const place = document.createElement("div");
  viewer.replaceChildren(place);
  SwaggerUIBundle({
    domNode: place,
    url,
    deepLinking: true,
    displayRequestDuration: true,
    tryItOutEnabled: true,
    validatorUrl: null,
  });
}

function offerChoice() {
  const label = document.createElement("label");
  const choice = document.createElement("select");
  for (const each of documents) {
    choice.add(new Option(each.name, each.url));
  }
  choice.addEventListener("change", () => show(choice.value));
  label.append("Application: ", choice);
  label.style.padding = "1em";
  viewer.before(label);
}

function followColours(preference) {
  document.documentElement.classList.toggle("dark-mode", preference.matches);
}

const dark = matchMedia("(prefers-color-scheme: dark)");
dark.addEventListener("change", followColours);
followColours(dark);
if (documents.length > 1) {
  offerChoice();
}
show(documents[0].url);
