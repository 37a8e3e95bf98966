// Shows the OpenAPI document. Everything is put into the page as text, never as markup, because
// answers shown here may contain whatever a target or another caller wrote.

const METHODS = ["get", "post", "put", "patch", "delete"];

function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== undefined && value !== false) node.setAttribute(name, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// Paragraphs, lists and `code`: as much of Markdown as the descriptions use.
function prose(text) {
  const box = el("div", { class: "prose" });
  for (const block of (text || "").trim().split(/\n\s*\n/)) {
    if (block.startsWith("* ")) {
      const items = block.split(/\n(?=\* )/).map((item) => el("li", {}, ...inline(item.slice(2))));
      box.append(el("ul", {}, ...items));
    } else if (block) {
      box.append(el("p", {}, ...inline(block)));
    }
  }
  return box;
}

function inline(text) {
  return text.split(/(`[^`]+`|\*[^*\s][^*]*\*)/).map((piece) => {
    if (/^`.+`$/.test(piece)) return el("code", {}, piece.slice(1, -1));
    if (/^\*.+\*$/.test(piece)) return el("em", {}, piece.slice(1, -1));
    return document.createTextNode(piece);
  });
}

function nameOf(ref) {
  return ref.split("/").pop();
}

// A schema on one line, with links to the components it names.
function typeOf(schema) {
  const box = el("span", { class: "type" });
  if (schema.$ref) {
    const name = nameOf(schema.$ref);
    box.append(el("a", { href: `#schema-${name}` }, name));
  } else if (schema.anyOf || schema.oneOf) {
    (schema.anyOf || schema.oneOf).forEach((one, n) => box.append(n ? " | " : "", typeOf(one)));
  } else if (schema.allOf) {
    schema.allOf.forEach((one, n) => box.append(n ? " & " : "", typeOf(one)));
  } else if (schema.enum) {
    box.append(schema.enum.map((value) => JSON.stringify(value)).join(" | "));
  } else if (schema.type === "array") {
    box.append("list of ", typeOf(schema.items || {}));
  } else if (schema.type === "object" && schema.additionalProperties) {
    box.append("map of ", typeOf(schema.additionalProperties));
  } else {
    box.append(schema.format ? `${schema.type} (${schema.format})` : String(schema.type || "any"));
  }
  const limits = limitsOf(schema);
  if (limits) box.append(` ${limits}`);
  return box;
}

function limitsOf(schema) {
  const words = [];
  if (schema.minimum !== undefined) words.push(`≥ ${schema.minimum}`);
  if (schema.exclusiveMinimum !== undefined) words.push(`> ${schema.exclusiveMinimum}`);
  if (schema.maximum !== undefined) words.push(`≤ ${schema.maximum}`);
  if (schema.maxLength !== undefined) words.push(`≤ ${schema.maxLength} characters`);
  if (schema.maxItems !== undefined) words.push(`≤ ${schema.maxItems} items`);
  return words.join(", ");
}

function rows(head, lines) {
  return el("table", {},
    el("thead", {}, el("tr", {}, ...head.map((word) => el("th", {}, word)))),
    el("tbody", {}, ...lines.map((cells) => el("tr", {}, ...cells.map((c) => el("td", {}, c))))));
}

function nameCell(name, needed) {
  return el("span", {}, el("code", {}, name), needed ? el("span", { class: "needed" }, "required") : null);
}

function schemaCard(name, schema) {
  const card = el("details", { class: "schema", id: `schema-${name}` },
    el("summary", {}, el("span", { class: "path" }, name),
      el("span", { class: "quiet" }, schema.description || "")));
  const required = new Set(schema.required || []);
  const lines = Object.entries(schema.properties || {}).map(([field, part]) => [
    nameCell(field, required.has(field)),
    el("div", {}, typeOf(part), part.description ? prose(part.description) : null),
  ]);
  card.append(el("div", { class: "inside" }, rows(["field", "type"], lines)));
  return card;
}

function parametersOf(operation) {
  if (!operation.parameters.length) return null;
  const lines = operation.parameters.map((one) => [
    nameCell(one.name, one.required),
    el("span", { class: "quiet" }, one.in),
    el("div", {}, typeOf(one.schema), prose(one.description)),
  ]);
  return el("div", {}, el("h4", {}, "Parameters"), rows(["name", "in", ""], lines));
}

function bodyOf(operation) {
  if (!operation.requestBody) return null;
  const box = el("div", {}, el("h4", {}, "Body"));
  for (const [media, content] of Object.entries(operation.requestBody.content)) {
    box.append(el("p", {}, el("code", {}, media), " ", typeOf(content.schema)));
    for (const example of Object.values(content.examples || {})) {
      box.append(el("pre", {}, pretty(example.value)));
    }
  }
  return box;
}

function answersOf(operation) {
  const lines = Object.entries(operation.responses).map(([status, answer]) => {
    const content = Object.values(answer.content || {})[0];
    return [
      el("span", { class: `status ${status < 400 ? "good" : "bad"}` }, status),
      el("div", {}, prose(answer.description), content ? typeOf(content.schema) : null),
    ];
  });
  return el("div", {}, el("h4", {}, "Answers"), rows(["status", ""], lines));
}

function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

function tryIt(path, method, operation) {
  const inputs = operation.parameters.map((one) => ({ one, input: inputFor(one.schema) }));
  const form = el("form", { class: "try" }, el("h4", {}, "Try it"),
    ...inputs.map(({ one, input }) => el("label", { class: "field" }, el("code", {}, one.name), input)));
  const media = el("select", {});
  const body = el("textarea", { spellcheck: "false", "aria-label": "Body" });
  const contents = operation.requestBody ? operation.requestBody.content : {};
  for (const name of Object.keys(contents)) media.append(el("option", { value: name }, name));
  const fill = () => {
    const first = Object.values((contents[media.value] || {}).examples || {})[0];
    body.value = first ? pretty(first.value) : "";
  };
  if (operation.requestBody) {
    media.addEventListener("change", fill);
    fill();
    form.append(el("label", { class: "field" }, "Body", media), body);
  }
  const button = el("button", {}, "Send");
  const shown = el("div", { "aria-live": "polite" });
  form.append(button, shown);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      shown.replaceChildren(await send(path, method, inputs, operation.requestBody && [media.value, body.value]));
    } catch (problem) {
      shown.replaceChildren(el("pre", {}, String(problem)));
    }
    button.disabled = false;
  });
  return form;
}

function inputFor(schema) {
  const choices = schema.enum || (schema.type === "boolean" ? ["true", "false"] : null);
  if (!choices) return el("input", { autocomplete: "off", spellcheck: "false" });
  return el("select", {}, el("option", { value: "" }, ""),
    ...choices.map((value) => el("option", { value }, String(value))));
}

async function send(path, method, inputs, body) {
  const headers = {};
  const query = new URLSearchParams();
  let target = path;
  for (const { one, input } of inputs) {
    if (one.in === "path") target = target.replace(`{${one.name}}`, encodeURIComponent(input.value));
    else if (input.value === "") continue;
    else if (one.in === "query") query.append(one.name, input.value);
    else headers[one.name] = input.value;
  }
  // The key lives in its field and nowhere else: no storage, no cookie.
  const key = document.getElementById("key").value.trim();
  if (key) headers.Authorization = `Bearer ${key}`;
  const options = { method: method.toUpperCase(), headers, credentials: "omit", cache: "no-store" };
  if (body) {
    headers["Content-Type"] = body[0];
    options.body = body[1];
  }
  const started = performance.now();
  const answer = await fetch(query.size ? `${target}?${query}` : target, options);
  const text = await answer.text();
  const took = Math.round(performance.now() - started);
  return el("div", {},
    el("p", {}, el("span", { class: `status ${answer.ok ? "good" : "bad"}` },
      `${answer.status} ${answer.statusText}`), el("span", { class: "quiet" }, `  ${took} ms`)),
    el("pre", {}, [...answer.headers].map(([name, value]) => `${name}: ${value}`).join("\n")),
    text ? el("pre", {}, readable(text)) : null);
}

function readable(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function operationCard(path, method, operation) {
  const card = el("details", { class: "operation", id: operation.operationId },
    el("summary", {}, el("span", { class: `method ${method}` }, method.toUpperCase()),
      el("span", { class: "path" }, path), el("span", { class: "said" }, operation.summary)));
  // Filled when it is opened: most never are.
  card.addEventListener("toggle", () => {
    if (!card.open || card.querySelector(".inside")) return;
    const inside = el("div", { class: "inside" }, prose(operation.description));
    for (const part of [parametersOf(operation), bodyOf(operation), answersOf(operation)]) {
      if (part) inside.append(part);
    }
    inside.append(tryIt(path, method, operation));
    card.append(inside);
  });
  return card;
}

function show(document_) {
  const main = document.getElementById("main");
  const contents = document.getElementById("contents");
  main.replaceChildren(el("h1", {}, `${document_.info.title} `,
    el("span", { class: "quiet" }, document_.info.version)), prose(document_.info.description));
  for (const tag of document_.tags) {
    const section = el("section", {}, el("h2", {}, tag.name));
    contents.append(el("h2", {}, tag.name));
    for (const [path, known] of Object.entries(document_.paths)) {
      for (const method of METHODS.filter((name) => known[name] && known[name].tags[0] === tag.name)) {
        section.append(operationCard(path, method, known[method]));
        contents.append(el("a", { href: `#${known[method].operationId}` },
          el("span", { class: `method ${method}` }, method.toUpperCase()), known[method].summary));
      }
    }
    main.append(section);
  }
  const schemas = el("section", {}, el("h2", {}, "Schemas"));
  for (const [name, schema] of Object.entries(document_.components.schemas)) {
    schemas.append(schemaCard(name, schema));
  }
  main.append(schemas);
  openNamed();
}

function openNamed() {
  const named = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (named instanceof HTMLDetailsElement) {
    named.open = true;
    named.scrollIntoView();
  }
}

window.addEventListener("hashchange", openNamed);
try {
  const answer = await fetch("/openapi.json", { credentials: "omit" });
  if (!answer.ok) throw new Error(`the document could not be read: ${answer.status}`);
  show(await answer.json());
} catch (problem) {
  document.getElementById("main").replaceChildren(el("pre", {}, String(problem)));
}
