// The calls, described: Swagger UI over /v1/openapi.json, with the token of the dashboard's login.

import { authorization, get } from "./api.js";

const place = document.getElementById("docs");

/** Says why nothing is shown, and where to go. */
function say(title, text, link) {
  const parts = [
    Object.assign(document.createElement("h1"), { className: "title", textContent: title }),
    Object.assign(document.createElement("p"), { textContent: text }),
  ];
  if (link) parts.push(Object.assign(document.createElement("a"), { href: "/", className: "btn", textContent: link }));
  const box = Object.assign(document.createElement("section"), { className: "wrapper" });
  box.append(...parts);
  place.replaceChildren(box);
}

// Whoever logs in beside, in another tab, is in here too.
addEventListener("storage", () => location.reload());

try {
  const spec = await get("/v1/openapi.json");
  SwaggerUIBundle({
    spec,
    domNode: place,
    tryItOutEnabled: true,
    validatorUrl: "none",
    requestInterceptor: (call) => {
      call.headers = { ...authorization(), ...call.headers };
      return call;
    },
  });
} catch (problem) {
  if (problem.status === 401) say("Log in", "Only those who have a token see the calls. Log in on the dashboard, then come back.", "Log in");
  else say("The calls cannot be shown", problem.message);
}
