
// Tabs, colours, keys.
const tabs = [...document.querySelectorAll('[role="tab"]')];

function openTab(name, focus) {
  const wanted = tabs.find((tab) => tab.getAttribute("aria-controls") === name) || tabs[0];
  for (const tab of tabs) {
    const on = tab === wanted;
    tab.setAttribute("aria-selected", on);
    tab.tabIndex = on ? 0 : -1;
    find(tab.getAttribute("aria-controls")).hidden = !on;
  }
  if (focus) wanted.focus();
}

for (const tab of tabs) {
  tab.addEventListener("click", () => {
    const name = tab.getAttribute("aria-controls");
    history.replaceState(null, "", `#${name}`);
    openTab(name, false);
  });
  tab.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    openTab(tabs[(tabs.indexOf(tab) + by + tabs.length) % tabs.length].getAttribute("aria-controls"), true);
  });
}

const THEMES = { system: ["\u25d0", "as the system has them"], light: ["\u25cb", "light"], dark: ["\u25cf", "dark"] };
let theme = "system";

function remember(value) {
  try {
    if (value === undefined) return localStorage.getItem("anima-batch-theme");
    localStorage.setItem("anima-batch-theme", value);
  } catch {
    // A browser may forbid it to a file; the choice then lasts as long as the page.
  }
  return null;
}

function showTheme(name) {
  theme = name in THEMES ? name : "system";
  document.documentElement.dataset.theme = theme;
  const [sign, words] = THEMES[theme];
  find("theme").textContent = sign;
  find("theme").setAttribute("aria-label", `Colours: ${words}`);
  find("theme").title = `Colours: ${words}`;
}

find("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  showTheme(names[(names.indexOf(theme) + 1) % names.length]);
  remember(theme);
});

document.addEventListener("click", (event) => {
  const stem = event.target.closest("[data-stem]")?.dataset.stem;
  if (stem) openPicture(stem);
  else if (event.target === dialog) dialog.close();
});

grid.addEventListener("keydown", (event) => {
  const from = event.target.closest(".tile");
  if (!from || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(event.key)) return;
  event.preventDefault();
  focusTile(neighbour(from, event.key));
});

dialog.addEventListener("close", () => {
  const element = opened && [...grid.querySelectorAll(".tile")].find((one) => one.dataset.stem === opened.stem);
  if (!find("pictures").hidden) focusTile(element);
});

document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/" && !typing && !dialog.open) {
    event.preventDefault();
    openTab("pictures", false);
    find("tools").querySelector("input").focus();
  } else if (event.key === "Escape" && typing && event.target.type === "search") {
    focusTile(grid.querySelector(".tile"));
  } else if (dialog.open && !event.target.closest("pre, .told")) {
    if (event.key === "ArrowRight") turn(1);
    if (event.key === "ArrowLeft") turn(-1);
    if (event.key === "r") find("flip")?.click();
  }
});

find("tools").addEventListener("submit", (event) => event.preventDefault());
find("flagged")?.addEventListener("change", (event) => find("compared").classList.toggle("only-flagged", event.target.checked));
window.addEventListener("hashchange", () => openTab(location.hash.slice(1), false));
window.addEventListener("resize", () => grid.style.setProperty("--tile", `${tileWidth()}px`));

showTheme(remember() || "system");
shown = images;
showTools();
showGrid();
openTab(location.hash.slice(1), false);
