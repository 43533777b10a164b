/**
 * Returns how much was looked at, and what contrasts too little with what is behind it:
 * text with less than 4.5, borders of fields, buttons and meters with less than 3.
 */
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parsed = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [red, green, blue, alpha] = canvas.getImageData(0, 0, 1, 1).data;
    return { rgb: [red, green, blue], alpha: alpha / 255 };
  };
  const luminance = ({ rgb }) => {
    const [red, green, blue] = rgb.map((one) =>
      one <= 10 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4,
    );
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
  };
  const contrast = (one, other) => {
    const [dark, light] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (light + 0.05) / (dark + 0.05);
  };
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const colour = parsed(getComputedStyle(one).backgroundColor);
      if (colour.alpha > 0) return colour;
    }
    return parsed("white");
  };
  const weak = [];
  let seen = 0;
  const look = (element, what, colour, back, least) => {
    seen += 1;
    const found = contrast(parsed(colour), back);
    if (found < least) weak.push(`${what} ${found.toFixed(2)}: ${element.outerHTML.slice(0, 120)}`);
  };
  const says = (element) =>
    [...element.childNodes].some((one) => one.nodeType === Node.TEXT_NODE && one.data.trim());
  for (const element of document.body.querySelectorAll("*")) {
    if (!element.checkVisibility() || element.matches(":disabled, option, .unseen")) continue;
    const style = getComputedStyle(element);
    const writes = element.matches("input, select, textarea");
    if (writes || says(element)) look(element, "text", style.color, behind(element), 4.5);
    if (element.placeholder) {
      const { color, opacity } = getComputedStyle(element, "::placeholder");
      const solid = opacity === "1" ? color : "transparent";
      look(element, "placeholder", solid, behind(element), 4.5);
    }
    const quiet = element.matches(".quiet, .time, .edit, [role=tab], [type=checkbox], [type=file]");
    if (element.matches("button, .button, input, select, textarea, .meter, .drop") && !quiet) {
      look(element, "border", style.borderTopColor, behind(element.parentElement), 3);
    }
  }
  return { seen, weak };
}
