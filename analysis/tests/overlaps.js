// What a reader would call ugly, in all pictures that are seen: text on other text, text cut off by the edge of its picture.
// Gives a list of sentences.
(() => {
  const found = [];
  const area = (a, b) => Math.max(0, Math.min(a.right, b.right) - Math.max(a.left, b.left)) * Math.max(0, Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));
  for (const svg of document.querySelectorAll("figure svg")) {
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    const name = svg.getAttribute("aria-label").slice(0, 60);
    // A box is as high as the font allows; letters fill about two thirds of it.
    const boxes = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim()).map((t) => {
      const r = t.getBoundingClientRect(), flat = r.width >= r.height || t.textContent.length < 3;
      const cut = flat ? r.height * 0.18 : 0;
      return { text: t.textContent.trim(), left: r.left, right: r.right, top: r.top + cut, bottom: r.bottom - cut };
    });
    boxes.forEach((a, i) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1 || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
        found.push(`${name}: "${a.text}" is cut off`);
      for (const b of boxes.slice(i + 1)) {
        if (area(a, b) > 2) found.push(`${name}: "${a.text}" lies on "${b.text}"`);
      }
    });
  }
  return found;
})();
