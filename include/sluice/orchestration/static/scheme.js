// Light and dark: as Airflow around this frame, else as the system.

export function follow() {
  let outer = null;
  try { outer = window.parent !== window ? window.parent.document.documentElement : null; } catch { outer = null; }
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const set = () => {
    const classes = outer?.classList;
    const dark = classes?.contains("dark")
      || (classes?.contains("light") ? false : outer?.dataset.theme ? outer.dataset.theme === "dark" : system.matches);
    document.documentElement.dataset.mode = dark ? "dark" : "light";
    document.dispatchEvent(new Event("scheme"));
  };
  if (outer) new MutationObserver(set).observe(outer, { attributes: true, attributeFilter: ["class", "data-theme", "style"] });
  system.addEventListener("change", set);
  set();
}
