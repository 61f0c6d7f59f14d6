"use strict";
// The page's data; every text of it reaches the page as text, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const images = data.images;
const byStem = new Map(images.map((image) => [image.stem, image]));
const SVG = "http://www.w3.org/2000/svg";

const find = (id) => document.getElementById(id);

/** An element with attributes, properties (names with a dot before) and children. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith(".")) element[key.slice(1)] = value;
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function draw(name, attributes, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

const fixed = (value, digits) => (value === null || value === undefined ? "" : value.toFixed(digits));
const share = (value) => (value === null ? "" : `${(100 * value).toFixed(1)} %`.replace("-", "\u2212"));

/** One bar a step: high where all passes ran, lower where some did, low and in the other colour where none did. */
function drawStrip(passes) {
  const most = Math.max(1, ...passes);
  const path = { computed: "", forecast: "" };
  passes.forEach((count, step) => {
    const height = count === most ? 10 : count ? 6 : 3;
    path[count ? "computed" : "forecast"] += `M${step + 0.08} ${10 - height}h.84v${height}h-.84z`;
  });
  return draw(
    "svg",
    { class: "strip", viewBox: `0 0 ${passes.length || 1} 10`, preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("path", { class: "computed", d: path.computed }),
    draw("path", { class: "forecast", d: path.forecast }),
  );
}
