/** Files that are dropped on the page. */

/** Call `take` with the files that are dropped while the element can be seen, wherever on the page. */
export function acceptDrops(element, take) {
  // Anywhere, and on any panel, so that a near miss does not leave the page. Text is not ours.
  const on = (name, handle) =>
    document.addEventListener(name, (event) => {
      if (!event.dataTransfer.types.includes("Files")) return;
      event.preventDefault();
      handle(event, element.checkVisibility());
    });
  on("dragover", ({ dataTransfer }, shown) => {
    if (!shown) dataTransfer.dropEffect = "none";
    element.classList.toggle("over", shown);
  });
  on("dragleave", () => element.classList.remove("over"));
  on("drop", ({ dataTransfer }, shown) => {
    element.classList.remove("over");
    if (shown && dataTransfer.files.length) take(dataTransfer.files);
  });
}
