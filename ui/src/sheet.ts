// The element boxd-style stands for <style>, which the page's policy forbids: its text becomes a style
// sheet that a script constructs, in force while the element is in the document. build.mjs makes xterm.js
// use it.
class Sheet extends HTMLElement {
  #sheet = new CSSStyleSheet();

  get textContent(): string {
    return "";
  }

  set textContent(css: string) {
    this.#sheet.replaceSync(css);
  }

  connectedCallback(): void {
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, this.#sheet];
  }

  disconnectedCallback(): void {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((s) => s !== this.#sheet);
  }
}

customElements.define("boxd-style", Sheet);
