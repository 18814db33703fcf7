// What readers without a mouse or without sight need, and the theme lacks: names of the side bars, and
// code and tables that can be scrolled with the keyboard.
document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
  document.querySelector(".toc-drawer")?.setAttribute("aria-label", "On this page");
  for (const one of document.querySelectorAll("pre, .table-wrapper, .wide")) {
    one.setAttribute("tabindex", "0");
  }
});
