// A page from the disk gets no search index, and the theme hides its search then: say what it takes.
if (location.protocol === "file:") {
  const note = document.createElement("span");
  note.textContent = "to search: python -m http.server -d site";
  note.style.fontSize = ".7rem";
  document.querySelector(".md-header__title").after(note);
}
