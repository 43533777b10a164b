// Sets the theme before anything is drawn, which is why this is no module: those come later.
// Without a choice the system's applies.
(() => {
  const chosen = localStorage.getItem("kvcast-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
})();
