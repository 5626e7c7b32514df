// What a list shows, as it stands in the address: #/?q=cnn&status=failed&sort=-accuracy&page=2.

import { STATUSES } from "../../lib/components.js";

export const PAGE_SIZE = 50;
/** Columns that can be sorted: field of the service -> its name. */
export const SORTS = {
  id: "Job",
  status: "Status",
  epoch: "Epoch",
  accuracy: "Accuracy",
  speed: "Samples/s",
  started: "Started",
  took: "Took",
  updated: "Updated",
};

/** Return the query in the parameters of an address; what it cannot be is left out. */
export function readQuery(given) {
  const status = given.get("status");
  const sort = given.get("sort") ?? "";
  const page = Number(given.get("page"));
  return {
    q: given.get("q") ?? "",
    status: STATUSES.includes(status) ? status : "",
    sort: sort.replace(/^-/, "") in SORTS ? sort : "",
    page: Number.isInteger(page) && page > 0 ? page : 1,
  };
}

/** Return the address of a query. */
export function listAddress({ q, status, sort, page }) {
  const given = Object.entries({ q, status, sort, page: page > 1 ? page : "" }).filter(([, value]) => value);
  return given.length ? `#/?${new URLSearchParams(given)}` : "#/";
}

/** Return the path that asks the service. */
export function searchPath({ q, status, sort, page }) {
  const given = { q, status, sort, offset: (page - 1) * PAGE_SIZE, limit: PAGE_SIZE };
  return `v1/search?${new URLSearchParams(Object.entries(given).filter(([, value]) => value !== ""))}`;
}
