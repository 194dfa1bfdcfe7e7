// build.mjs - make dist/ of src/: "npm run build". With an argument, make that directory instead.
// The same sources and the same lock file give the same bytes; a test of the repository compares them.
import { readFileSync, writeFileSync, rmSync, mkdirSync, copyFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const out = process.argv[2] ?? join(here, "dist");
rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });

// The page's policy forbids inline styles, and xterm.js writes them in two ways: elements <style>, in whose
// place src/sheet.ts has an element with a constructed style sheet, and attributes, in whose place scripts may
// set properties. Each must be found as often as is known, so that a new version is looked at.
const changes = [
  { from: '.createElement("style")', to: '.createElement("boxd-style")', times: 3 },
  { from: 't.setAttribute("style",`${t.getAttribute("style")||""}${e};`)', to: "t.style.cssText+=e+';'", times: 1 },
];
const withoutInlineStyles = {
  name: "xterm-without-inline-styles",
  setup(b) {
    b.onLoad({ filter: /@xterm\/xterm\/lib\/xterm\.mjs$/ }, ({ path }) => {
      let contents = readFileSync(path, "utf8");
      for (const { from, to, times } of changes) {
        const parts = contents.split(from);
        if (parts.length !== times + 1) {
          throw new Error(`xterm.mjs has ${parts.length - 1} of ${from}, want ${times}: look for inline styles in this version`);
        }
        contents = parts.join(to);
      }
      return { contents, loader: "js" };
    });
  },
};

await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx" },
  outdir: out,
  bundle: true,
  format: "esm",
  splitting: true, // the terminal is loaded when it is used
  chunkNames: "[name]",
  target: ["chrome111", "firefox114", "safari16.4"],
  jsx: "automatic",
  jsxImportSource: "preact",
  minify: true,
  charset: "utf8",
  legalComments: "none", // licenses.txt has them
  plugins: [withoutInlineStyles],
});

copyFileSync(join(here, "src/index.html"), join(out, "index.html"));
copyFileSync(join(here, "src/icon.svg"), join(out, "icon.svg"));
const css = await build({
  absWorkingDir: here,
  stdin: { contents: '@import "@xterm/xterm/css/xterm.css"; @import "./src/style.css";', loader: "css", resolveDir: here },
  bundle: true,
  minify: true,
  legalComments: "none",
  write: false,
});
writeFileSync(join(out, "app.css"), css.outputFiles[0].contents);

const licenses = ["preact", "@xterm/xterm", "@xterm/addon-fit"].map((name) => {
  const dir = join(here, "node_modules", name);
  const { version } = JSON.parse(readFileSync(join(dir, "package.json"), "utf8"));
  return `${name} ${version}\n\n${readFileSync(join(dir, "LICENSE"), "utf8").trim()}\n`;
});
writeFileSync(join(out, "licenses.txt"), "This page contains the following software.\n\n" + licenses.join("\n----\n\n"));
