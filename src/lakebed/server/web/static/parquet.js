// Reads the schema and the first rows of a Parquet object, in a thread of its own: the page ends it if it takes too long.
// It asks for ranges of the object with the person's own rights. The server never parses a stranger's file.
import { compressors, parquetMetadataAsync, parquetReadObjects, parquetSchema } from "./hyparquet.js";

const BYTES_MAX = 16 * 1024 * 1024, ROWS = 200, COLUMNS = 60, CHARACTERS = 500;

// JSON has no whole numbers beyond 2^53: these are texts.
const short = (whole) => (Number.isSafeInteger(Number(whole)) ? Number(whole) : String(whole));
const words = (value) => {
  if (value === null || value === undefined) return "";
  if (value instanceof Date) return Number.isNaN(value.getTime()) ? "" : value.toISOString();
  if (value instanceof Uint8Array) return [...value.subarray(0, 32)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  if (typeof value === "object") {
    return JSON.stringify(value, (_, each) => (typeof each === "bigint" ? short(each) : each)).slice(0, CHARACTERS);
  }
  return String(value).slice(0, CHARACTERS);
};

// Of each leaf: name, type, and of all row groups together nulls, minimum and maximum, where the footer has them.
const columnsOf = (metadata) => {
  const columns = new Map();
  for (const group of metadata.row_groups) {
    for (const { meta_data: chunk } of group.columns) {
      const name = chunk.path_in_schema.join("."), kept = columns.get(name);
      const { null_count: nulls, min_value: low, max_value: high } = chunk.statistics ?? {};
      if (!kept) { columns.set(name, { type: chunk.type, nulls, low, high }); continue; }
      kept.nulls = kept.nulls === undefined || nulls === undefined ? undefined : kept.nulls + nulls;
      if (low === undefined || low < kept.low) kept.low = low;
      if (high === undefined || high > kept.high) kept.high = high;
    }
  }
  return [...columns].slice(0, 1000).map(([name, { type, nulls, low, high }]) => [name, type, words(nulls), words(low), words(high)]);
};

self.onmessage = async ({ data: { url, size } }) => {
  let read = 0;
  const slice = async (start, end = size) => {
    read += end - start;
    if (read > BYTES_MAX) throw new Error(`its first rows need more than ${BYTES_MAX >> 20} MiB`);
    const answer = await fetch(url, { headers: { range: `bytes=${start}-${end - 1}` } });
    if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
    return answer.arrayBuffer();
  };
  try {
    const file = { byteLength: size, slice }, metadata = await parquetMetadataAsync(file);
    const columns = columnsOf(metadata);
    self.postMessage({ columns, count: String(metadata.num_rows), groups: metadata.row_groups.length });
    const names = parquetSchema(metadata).children.slice(0, COLUMNS).map((child) => child.element.name);
    const rows = await parquetReadObjects({ file, metadata, compressors, columns: names, rowStart: 0, rowEnd: ROWS });
    self.postMessage({ rows: [names, ...rows.map((row) => names.map((name) => words(row[name])))] });
  } catch (error) {
    self.postMessage({ failed: String(error.message).slice(0, CHARACTERS) });
  }
};
