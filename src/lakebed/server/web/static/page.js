// Makes pages better where scripts run. Each page works without: forms post, links lead to pages.
// Contents of objects reach the page by `textContent` alone.
"use strict";
(() => {
  const PREVIEW_BYTES = 256 * 1024, ROWS = 200, COLUMNS = 60, PARQUET_MS = 20_000;
  const folder = document.currentScript.src;
  const all = (selector) => document.querySelectorAll(selector);
  const make = (tag, text, parent) => {
    const element = document.createElement(tag);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };
  document.documentElement.classList.add("scripted");

  for (const select of all("[data-submits]")) select.addEventListener("change", () => select.form.submit());

  // The tab of this page is in sight where the tabs are wider than the page.
  for (const tab of all(".tabs [aria-current]")) {
    const tabs = tab.parentElement;
    tabs.scrollLeft = tab.offsetLeft - tabs.offsetLeft - (tabs.clientWidth - tab.clientWidth) / 2;
  }

  // A field for a ref offers the first names. What is typed finds the others, of branches and tags.
  for (const list of all("[data-refs]")) {
    let timer;
    const find = async (text) => {
      const pages = ["branches", "tags"].map(async (kind) => {
        const answer = await fetch(`${list.dataset.refs}/${kind}?amount=20&prefix=${encodeURIComponent(text)}`);
        return answer.ok ? (await answer.json()).results.map((each) => each.id) : [];
      });
      const names = (await Promise.all(pages)).flat();
      if (names.length) list.replaceChildren(...names.map((name) => Object.assign(make("option"), { value: name })));
    };
    for (const field of all(`input[list="${list.id}"]`)) {
      field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(() => find(field.value).catch(() => {}), 200); });
    }
  }

  // A period in days has a slider, too.
  const DAYS = /^(\d{1,3})d$/;
  for (const field of all("[data-days]")) {
    const slider = make("input");
    Object.assign(slider, { type: "range", min: 1, max: 180, ariaLabel: `${field.ariaLabel}, in days` });
    const follow = () => { const days = DAYS.exec(field.value.trim()); slider.hidden = !days; slider.value = days ? days[1] : 30; };
    slider.addEventListener("input", () => { field.value = `${slider.value}d`; });
    field.addEventListener("input", follow);
    follow();
    field.after(slider);
  }

  // A part that changes without us, such as the jobs of the server, is asked for again while it does.
  const renew = async (part) => {
    const answer = await fetch(location.href, { headers: { accept: "text/html" } });
    const next = answer.ok && new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-live]");
    if (!next) return;
    if (!part.contains(document.activeElement)) { part.replaceWith(next); part = next; reachIn(part); }
    watch(part, next.dataset.live);
  };
  const watch = (part, isChanging) => { if (isChanging) setTimeout(() => renew(part).catch(() => {}), 1500); };
  for (const part of all("[data-live]")) watch(part, part.dataset.live);

  // A part that takes the server longer is asked for once the page is shown. Its link leads to the page that has it.
  for (const part of all("[data-later]")) {
    fetch(part.querySelector("a").href, { headers: { accept: "text/html" } }).then(async (answer) => {
      const other = answer.ok && new DOMParser().parseFromString(await answer.text(), "text/html").getElementById(part.dataset.later);
      if (other) part.prepend(other);
    }).catch(() => {});
  }

  // A search goes on behind its link, page by page. Only the last page is shown whole.
  const follow = async (part) => {
    const { href } = part.querySelector("a");
    const answer = await fetch(href, { headers: { accept: "text/html" } });
    const next = answer.ok && new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("[data-following]");
    if (!next) return location.replace(href);
    part.replaceChildren(...next.childNodes);
    return follow(part);
  };
  for (const part of all("[data-following]")) { part.setAttribute("role", "status"); follow(part).catch(() => {}); }

  // The keyboard reaches a box that scrolls, and no other.
  const reach = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      if (target.scrollWidth > target.clientWidth || target.scrollHeight > target.clientHeight) target.tabIndex = 0;
      else target.removeAttribute("tabindex");
    }
  });
  const reachIn = (part) => { for (const box of part.querySelectorAll(".wide, pre")) reach.observe(box); };
  reachIn(document);

  document.addEventListener("keydown", (event) => {
    const inField = event.target.closest("input, textarea, select, [contenteditable]");
    if (event.key === "/" && !inField && !event.ctrlKey && !event.metaKey && !event.altKey) {
      const search = document.querySelector("[data-search]");
      if (search) { event.preventDefault(); search.focus(); }
    }
  });

  if (navigator.clipboard) {
    for (const code of all("[data-copy]")) {
      const button = make("button", "Copy");
      button.type = "button";
      button.className = "quiet copy";
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(code.textContent);
        button.textContent = "Copied";
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      });
      code.after(button);
    }
  }

  for (const button of all("[data-download-pair]")) {
    const [id, secret] = [...all("[data-key-pair] code")].map((code) => code.textContent);
    button.hidden = false;
    button.addEventListener("click", () => {
      const link = make("a");
      const text = `access_key_id = "${id}"\nsecret_access_key = "${secret}"\n`;
      link.href = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
      link.download = "lakebed-key-pair.txt";
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }

  // Markdown, as far as most READMEs go. Each element is made here, and gets its text by `textContent`.
  // The text is a stranger's: no pattern may try n characters in more than some n ways.
  const INLINE = /(`{1,3})(.+?)\1|\*\*(.+?)\*\*|__(.+?)__|\*([^*\s][^*]*?)\*|\b_([^_]+)_\b|!?\[(!\[[^[\]]*\]\([^()\s]*\)|[^[\]]*)\]\(([^()\s]*)(?:\s[^()]*)?\)/s;
  const withoutEnd = (words) => { let end = words.trimEnd().length; while (words[end - 1] === "#") end--; return words.slice(0, end); };
  const inline = (text, parent) => {
    for (let at; (at = INLINE.exec(text)); text = text.slice(at.index + at[0].length)) {
      parent.append(text.slice(0, at.index));
      const [, , code, bold, bolder, slanted, slanting, label, address] = at;
      if (code !== undefined) make("code", code.trim(), parent);
      else if (bold ?? bolder) inline(bold ?? bolder, make("strong", undefined, parent));
      else if (slanted ?? slanting) inline(slanted ?? slanting, make("em", undefined, parent));
      else if (at[0][0] === "!") parent.append(label || address);
      else {
        const link = /^https?:\/\//i.test(address) ? Object.assign(make("a", undefined, parent), { href: address, rel: "noreferrer noopener" }) : parent;
        if (label) inline(label, link); else link.append(address);
      }
    }
    parent.append(text);
  };
  const markdown = (text, box) => {
    const lines = text.split(/\r?\n/), cells = (line) => line.trim().replace(/^\||(?<!\\)\|$/g, "").split(/(?<!\\)\|/).map((each) => each.trim().replaceAll("\\|", "|"));
    const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/s, isRule = (line) => /^\s*([-*_])(\s*\1){2,}\s*$/.test(line);
    const begins = (line) => /^(#{1,6}\s|```|~~~|>)/.test(line) || item.test(line) || isRule(line);
    for (let i = 0; i < lines.length;) {
      const line = lines[i], heading = /^(#{1,6})\s+(.*)$/s.exec(line), fence = /^(```|~~~)/.exec(line);
      if (!line.trim()) i++;
      // The page has the first levels itself.
      else if (heading) { inline(withoutEnd(heading[2]), make(`h${Math.min(heading[1].length + 2, 6)}`, undefined, box)); i++; }
      else if (fence) {
        const code = [];
        for (i++; i < lines.length && !lines[i].startsWith(fence[1]); i++) code.push(lines[i]);
        make("pre", code.join("\n"), box);
        i++;
      } else if (isRule(line)) { make("hr", undefined, box); i++; }
      else if (line.startsWith(">")) {
        const quoted = [];
        for (; i < lines.length && lines[i].startsWith(">"); i++) quoted.push(lines[i].replace(/^>\s?/, "").replace(/^>+/, ""));
        markdown(quoted.join("\n"), make("blockquote", undefined, box));
      } else if (item.test(line)) {
        const kind = (each) => (/\d/.test(item.exec(each)[2]) ? "ol" : "ul"), list = make(kind(line), undefined, box);
        for (; i < lines.length && item.test(lines[i]) && kind(lines[i]) === list.localName;) {
          const words = [item.exec(lines[i++])[3]];
          while (i < lines.length && lines[i].trim() && !begins(lines[i])) words.push(lines[i++].trim());
          inline(words.join(" "), make("li", undefined, list));
        }
      } else if (line.includes("|") && lines[i + 1]?.includes("-") && /^[\s|:-]+$/.test(lines[i + 1])) {
        const rows = [cells(line)];
        for (i += 2; i < lines.length && lines[i].includes("|"); i++) rows.push(cells(lines[i]));
        showTable(rows, box, ROWS, inline);
      } else {
        const words = [];
        while (i < lines.length && lines[i].trim() && (!words.length || !begins(lines[i]))) words.push(lines[i++].trim());
        inline(words.join(" "), make("p", undefined, box));
      }
    }
  };
  const showMarkdown = (text, box) => { const prose = make("div", undefined, box); prose.className = "prose"; markdown(text, prose); };

  // Preview

  const parseCsv = (text, separator) => {
    const rows = [[]];
    let cell = "", quoted = false;
    for (let i = 0; i < text.length && rows.length <= ROWS; i++) {
      const c = text[i];
      if (quoted) {
        if (c !== '"') cell += c;
        else if (text[i + 1] === '"') { cell += c; i++; }
        else quoted = false;
      } else if (c === '"' && cell === "") quoted = true;
      else if (c === separator) { rows.at(-1).push(cell); cell = ""; }
      else if (c === "\n") { rows.at(-1).push(cell.replace(/\r$/, "")); cell = ""; rows.push([]); }
      else cell += c;
    }
    if (cell || rows.at(-1).length) rows.at(-1).push(cell);
    return rows.filter((row) => row.length);
  };
  const showTable = (rows, box, most = ROWS, fill = (text, cell) => cell.append(text.slice(0, 500))) => {
    const table = make("table", undefined, make("div", undefined, box));
    table.parentElement.className = "wide";
    const [first, ...others] = rows;
    const head = make("tr", undefined, make("thead", undefined, table));
    for (const name of first.slice(0, COLUMNS)) fill(name, Object.assign(make("th", undefined, head), { scope: "col" }));
    const body = make("tbody", undefined, table);
    for (const row of others.slice(0, most)) {
      const line = make("tr", undefined, body);
      for (const value of row.slice(0, COLUMNS)) fill(value, make("td", undefined, line));
    }
  };
  for (const text of all("[data-markdown]")) {
    const box = make("div");
    showMarkdown(text.textContent, box);
    text.replaceWith(box);
  }
  const kindOf = (name, type) => {
    const end = name.toLowerCase().split(".").pop();
    if (end === "parquet" || type.startsWith("application/vnd.apache.parquet")) return "parquet";
    if (end === "csv" || type.startsWith("text/csv")) return "csv";
    if (end === "tsv") return "tsv";
    if (end === "json" || type.startsWith("application/json")) return "json";
    if (["jsonl", "ndjson"].includes(end)) return "jsonl";
    if (["md", "markdown"].includes(end)) return "markdown";
    if (type.startsWith("text/") || ["txt", "log", "py", "sql", "yaml", "yml", "toml", "xml", "html", "svg"].includes(end)) return "text";
    return "";
  };
  const showText = (text, kind, isWhole, box) => {
    if (kind === "csv" || kind === "tsv") {
      const rows = parseCsv(text, kind === "csv" ? "," : "\t");
      if (rows.length) return showTable(rows, box);
    }
    if (kind === "json" && isWhole) {
      try { text = JSON.stringify(JSON.parse(text), null, 2); } catch { /* It is shown as it is. */ }
    }
    if (kind === "jsonl") {
      try {
        const records = text.split("\n").slice(0, isWhole ? undefined : -1).filter(Boolean).slice(0, ROWS).map((line) => JSON.parse(line));
        const names = [...new Set(records.flatMap((record) => Object.keys(record)))];
        return showTable([names, ...records.map((record) => names.map((name) => (name in record ? JSON.stringify(record[name]) : "")))], box);
      } catch { /* It is shown as it is. */ }
    }
    if (kind === "markdown") return showMarkdown(text, box);
    make("pre", text, box);
  };
  // Read an object of Parquet in a worker. It ends when `take` returns the words to end with.
  const readParquet = ({ preview, size }, take) => {
    const reader = new Worker(new URL("parquet.js", folder), { type: "module" });
    const end = (data) => { if (take(data) === undefined) return; reader.terminate(); clearTimeout(timer); };
    const timer = setTimeout(() => end({ failed: "to read them takes too long" }), PARQUET_MS);
    reader.addEventListener("error", () => end({ failed: "the reader did not start" }));
    reader.addEventListener("message", ({ data }) => end(data));
    reader.postMessage({ url: new URL(preview, location.href).href, size: Number(size) });
  };
  const rowsIn = ({ count, groups }) => `${Number(count).toLocaleString("en")} rows in ${groups} row group${groups === 1 ? "" : "s"}`;
  const showParquet = (side, status, box) => {
    const end = (words) => (status.textContent = words);
    readParquet(side, (data) => {
      if (data.failed) return end(`There is no preview of rows: ${data.failed}.`);
      if (data.columns) {
        const schema = make("details", undefined, box);
        make("summary", `${rowsIn(data)}; ${data.columns.length} columns`, schema);
        showTable([["Column", "Type", "Nulls", "Minimum", "Maximum"], ...data.columns], schema, data.columns.length);
        return undefined;
      }
      if (data.rows.length > 1) showTable(data.rows, box);
      reachIn(box);
      return end(data.rows.length > 1 ? `The first rows: ${data.rows.length - 1}.` : "It has no rows.");
    });
  };
  // Two objects of Parquet in one table: each column with its type, nulls and range, and how they differ.
  const schemaOf = (side) => new Promise((done) => readParquet(side, (data) => { done(data); return ""; }));
  const compareParquet = async (left, right, before) => {
    const [a, b] = await Promise.all([schemaOf(left.dataset), schemaOf(right.dataset)]);
    if (!a.columns || !b.columns) return;
    const part = make("section");
    before.before(part);
    make("h2", "Schema and counts", part);
    make("p", rowsIn(a) === rowsIn(b) ? `${rowsIn(a)} on both sides.` : `${rowsIn(a)} on the left, ${rowsIn(b)} on the right.`, part);
    const sides = [a, b].map((each) => new Map(each.columns.map((column) => [column[0], column])));
    const names = [...new Set([...sides[0].keys(), ...sides[1].keys()])];
    const rows = names.map((name) => {
      const [one, other] = sides.map((side) => side.get(name));
      const change = !one ? "added" : !other ? "removed" : one.some((value, at) => value !== other[at]) ? "changed" : "";
      const parts = (one ?? other).slice(1).map((value, at) => (one && other && value !== other[at + 1] ? `${value || "unknown"} → ${other[at + 1] || "unknown"}` : value));
      return { change, cells: [name, ...parts] };
    });
    showTable([["Column", "Type", "Nulls", "Minimum", "Maximum", "Change"], ...rows.map(({ cells, change }) => [...cells, change])], part, rows.length);
    part.querySelectorAll("tbody tr").forEach((line, at) => {
      const { change } = rows[at];
      if (!change) return;
      line.className = change;
      line.lastChild.replaceChildren(Object.assign(make("span", change), { className: "tag" }));
    });
    reachIn(part);
  };
  // Two texts by line: pairs of lines with their numbers, where a pair that differs lacks a side.
  const CELLS_MAX = 4e6, AROUND = 3;
  const linesOf = (text) => { const lines = text.split("\n"); if (lines.at(-1) === "") lines.pop(); return lines; };
  const differ = (a, b) => {
    let head = 0, tail = 0;
    while (head < a.length && head < b.length && a[head] === b[head]) head++;
    while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail++;
    const rows = [], n = a.length - head - tail, m = b.length - head - tail;
    for (let i = 0; i < head; i++) rows.push([i, i]);
    // The length of the longest common part of what is left of either; none where that is too much to try.
    const width = m + 1, common = n * m <= CELLS_MAX ? new Uint16Array((n + 1) * width) : undefined;
    if (common) {
      for (let i = n - 1; i >= 0; i--) for (let j = m - 1; j >= 0; j--) {
        common[i * width + j] = a[head + i] === b[head + j] ? common[(i + 1) * width + j + 1] + 1 : Math.max(common[(i + 1) * width + j], common[i * width + j + 1]);
      }
    }
    for (let i = 0, j = 0; i < n || j < m;) {
      if (common && i < n && j < m && a[head + i] === b[head + j]) rows.push([head + i++, head + j++]);
      else if (i < n && (!common || j === m || common[(i + 1) * width + j] >= common[i * width + j + 1])) rows.push([head + i++, -1]);
      else rows.push([-1, head + j++]);
    }
    for (let i = tail; i > 0; i--) rows.push([a.length - i, b.length - i]);
    return rows;
  };
  const showLines = (left, right, box) => {
    const a = linesOf(left), b = linesOf(right), rows = differ(a, b);
    const near = new Set();
    rows.forEach(([i, j], at) => { if (i < 0 || j < 0) for (let k = at - AROUND; k <= at + AROUND; k++) near.add(k); });
    if (!near.size) { make("p", "No line differs.", box).className = "help"; return; }
    const table = make("table", undefined, make("div", undefined, box)), body = make("tbody", undefined, table);
    table.parentElement.className = "wide";
    table.className = "lines";
    // The first row sets the widths.
    const widths = make("colgroup");
    for (const kind of ["few", "", "few", ""]) make("col", undefined, widths).className = kind;
    table.prepend(widths);
    const cell = (line, number, text, kind) => {
      make("td", number < 0 ? "" : number + 1, line).className = "number";
      make("td", number < 0 ? "" : text.slice(0, 2000), line).className = number < 0 ? "" : kind;
    };
    const show = (i, j, isSame) => {
      const line = make("tr", undefined, body);
      cell(line, i, a[i], isSame ? "" : "old");
      cell(line, j, b[j], isSame ? "" : "new");
    };
    // Lines that go stand beside those that come in their place.
    let old = [], fresh = [];
    const flush = () => { for (let k = 0; k < Math.max(old.length, fresh.length); k++) show(old[k] ?? -1, fresh[k] ?? -1, false); old = []; fresh = []; };
    rows.slice(0, 4000).forEach(([i, j], at) => {
      if (j < 0) { old.push(i); return; }
      if (i < 0) { fresh.push(j); return; }
      flush();
      if (near.has(at)) show(i, j, true);
      else if (!at || near.has(at - 1)) { const gap = make("td", "⋯", make("tr", undefined, body)); gap.colSpan = 4; gap.className = "number"; }
    });
    flush();
    if (rows.length > 4000) make("p", "The first 4,000 lines.", box).className = "help";
  };
  for (const box of all("[data-difference]")) {
    const [left, right] = box.querySelectorAll("[data-preview]");
    if (left && right && [left, right].every((side) => kindOf(side.dataset.name, side.dataset.type) === "parquet")) {
      compareParquet(left, right, box).catch(() => {});
      continue;
    }
    if (!left || !right || !["csv", "tsv", "json", "jsonl", "markdown", "text"].includes(kindOf(left.dataset.name, left.dataset.type))) continue;
    if (Math.max(left.dataset.size, right.dataset.size) > PREVIEW_BYTES) continue;
    const text = async (side) => {
      const answer = await fetch(side.dataset.preview);
      if (!answer.ok) throw new Error();
      return answer.text();
    };
    Promise.all([text(left), text(right)]).then((texts) => {
      showLines(...texts, box);
      left.remove();
      right.remove();
      reachIn(box);
    }).catch(() => {});
  }
  for (const box of all("[data-preview]")) {
    const { preview, type, name } = box.dataset, size = Number(box.dataset.size);
    const kind = kindOf(name, type);
    box.replaceChildren();
    if (size === 0) { make("p", "The object is empty.", box).className = "help"; continue; }
    if (!kind) { make("p", "There is no preview of this type.", box).className = "help"; continue; }
    const status = make("p", "Loading…", box);
    status.className = "help";
    if (kind === "parquet") { showParquet(box.dataset, status, box); continue; }
    fetch(preview, { headers: { range: `bytes=0-${PREVIEW_BYTES - 1}` } }).then(async (answer) => {
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      const bytes = new Uint8Array(await answer.arrayBuffer());
      const isWhole = bytes.length >= size;
      if (bytes.subarray(0, 4096).includes(0)) { status.textContent = "The object is not text."; return; }
      status.textContent = isWhole ? "" : `The first ${bytes.length.toLocaleString("en")} of ${size.toLocaleString("en")} bytes.`;
      showText(new TextDecoder().decode(bytes), kind, isWhole, box);
      reachIn(box);
    }).catch((error) => { status.textContent = `There is no preview: ${error.message}.`; });
  }

  // Upload by drop, also of folders

  const filesBelow = async (entry, path) => {
    if (entry.isFile) return [[path + entry.name, await new Promise((done, failed) => entry.file(done, failed))]];
    const reader = entry.createReader(), found = [];
    for (;;) {
      const entries = await new Promise((done, failed) => reader.readEntries(done, failed));
      if (!entries.length) return found;
      for (const each of entries) found.push(...await filesBelow(each, `${path}${entry.name}/`));
    }
  };
  const uploadOne = (url, path, file, list) => new Promise((done) => {
    const line = make("li", undefined, list), bar = make("progress", undefined, line);
    make("span", ` ${path}`, line);
    const request = new XMLHttpRequest();
    request.open("POST", `${url}?path=${encodeURIComponent(path)}`);
    request.setRequestHeader("content-type", file.type || "application/octet-stream");
    request.upload.addEventListener("progress", (event) => { bar.max = event.total; bar.value = event.loaded; });
    request.addEventListener("loadend", () => {
      bar.remove();
      let message = "";
      if (request.status !== 201) {
        try { message = JSON.parse(request.responseText).message; } catch { message = "the server did not answer"; }
      }
      make("strong", message ? ` failed: ${message}` : " uploaded", line);
      done(!message);
    });
    request.send(file);
  });
  for (const section of all("[data-upload]")) {
    const { upload, folder } = section.dataset, list = section.querySelector("[data-progress]");
    section.querySelector("[data-drop-help]").hidden = false;
    section.addEventListener("dragover", (event) => { event.preventDefault(); section.classList.add("over"); });
    section.addEventListener("dragleave", () => section.classList.remove("over"));
    section.addEventListener("drop", async (event) => {
      event.preventDefault();
      section.classList.remove("over");
      const entries = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry()).filter(Boolean);
      let isAll = true;
      for (const entry of entries) {
        for (const [path, file] of await filesBelow(entry, folder)) isAll = await uploadOne(upload, path, file, list) && isAll;
      }
      if (isAll && entries.length) location.reload();
    });
  }
})();
