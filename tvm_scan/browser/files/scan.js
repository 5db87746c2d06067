// Loads what lies in a page's folder, and runs it: on WebGPU, and as the loop that it was written as.
// No dependencies. scan.d.ts has the types; manifest.json says what there is to run.

const TYPES = {
  float64: Float64Array,
  float32: Float32Array,
  float16: globalThis.Float16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int8: Int8Array,
  uint8: Uint8Array,
  bool: Uint8Array,
};
// Threads of a subgroup that kernels with shuffles are written for.
const WARP = 32;
// What kernels may need more of than every implementation has.
const LIMITS = [
  "maxBufferSize",
  "maxStorageBufferBindingSize",
  "maxStorageBuffersPerShaderStage",
  "maxComputeWorkgroupStorageSize",
  "maxComputeInvocationsPerWorkgroup",
  "maxComputeWorkgroupSizeX",
];

const quotient = (a, b) => Math.trunc(a / b);
const OPERATORS = {
  "+": (a, b) => a + b,
  "-": (a, b) => a - b,
  "*": (a, b) => a * b,
  "//": (a, b) => Math.floor(a / b),
  "%": (a, b) => a - b * Math.floor(a / b),
  quotient,
  remainder: (a, b) => a - b * quotient(a, b),
  min: Math.min,
  max: Math.max,
  "<<": (a, b) => a * 2 ** b,
  ">>": (a, b) => Math.floor(a / 2 ** b),
  "==": (a, b) => Number(a === b),
  "!=": (a, b) => Number(a !== b),
  "<": (a, b) => Number(a < b),
  "<=": (a, b) => Number(a <= b),
  and: (a, b) => Number(Boolean(a && b)),
  or: (a, b) => Number(Boolean(a || b)),
  not: (a) => Number(!a),
};

/** A number of a manifest: an integer, a name, or a list of an operator and its operands. */
export function evaluate(number, names) {
  if (typeof number === "number") return number;
  if (typeof number === "string") {
    if (!(number in names)) throw new Error(`expected a value for the size ${number}, got none; give it`);
    return names[number];
  }
  const [operator, ...operands] = number;
  if (operator === "if") return evaluate(operands[evaluate(operands[0], names) ? 1 : 2], names);
  return OPERATORS[operator](...operands.map((one) => evaluate(one, names)));
}

const cellsOf = (shape) => shape.reduce((product, extent) => product * extent, 1);

/** Names of the extents of parameters, by the shapes of arguments. */
function sizesOf(parameters, shapes) {
  const names = {};
  parameters.forEach(({ shape }, i) =>
    shape.forEach((extent, axis) => {
      if (typeof extent === "string") names[extent] = shapes[i][axis];
    }),
  );
  return names;
}

/** What a host does, step by step; a machine allocates, launches and calls. */
function perform(steps, names, arrays, machine) {
  for (const step of steps) {
    if ("let" in step) {
      names[step.let] = evaluate(step.value, names);
    } else if ("allocate" in step) {
      const shape = step.shape.map((extent) => evaluate(extent, names));
      arrays[step.allocate] = machine.allocate(step.dtype, shape);
    } else if ("view" in step) {
      const shape = step.shape.map((extent) => evaluate(extent, names));
      arrays[step.view] = { ...arrays[step.of], shape };
    } else if ("call" in step) {
      machine.call(step.call, step.arguments.map((name) => arrays[name]));
    } else if ("launch" in step) {
      const grid = step.grid.map((extent) => evaluate(extent, names));
      machine.launch(step.launch, step.arguments, names, arrays, grid);
    } else if ("if" in step) {
      perform(evaluate(step.if, names) ? step.then : step.else, names, arrays, machine);
    } else {
      const extent = evaluate(step.extent, names);
      for (let i = 0; i < extent; i++) {
        names[step.for] = i;
        perform(step.do, names, arrays, machine);
      }
    }
  }
}

/** The loop: arrays of JavaScript, floats as wide as is asked for. */
class Loops {
  constructor(scan, wide) {
    this.scan = scan;
    this.floats = wide ? Float64Array : Float32Array;
  }

  type(dtype) {
    return dtype.startsWith("float") ? this.floats : TYPES[dtype];
  }

  allocate(dtype, shape) {
    return { shape, data: new (this.type(dtype))(cellsOf(shape)) };
  }

  call(name, values) {
    const { parameters } = this.scan.manifest.loops[name];
    const sizes = sizesOf(parameters, values.map((value) => value.shape));
    this.scan.loops[name](this.floats, values.map((value) => value.data), sizes);
  }
}

/** Kernels: buffers of a device, and passes of one encoder. */
class Kernels {
  constructor(scan) {
    this.scan = scan;
    this.device = scan.device;
    this.made = [];
  }

  keep(buffer) {
    this.made.push(buffer);
    return buffer;
  }

  allocate(dtype, shape) {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    // A multiple of four bytes, and none is empty.
    const size = Math.max(4, Math.ceil((cellsOf(shape) * TYPES[dtype].BYTES_PER_ELEMENT) / 4) * 4);
    return { shape, data: this.keep(this.device.createBuffer({ size, usage })) };
  }

  call(name, values) {
    const { parameters, steps } = this.scan.manifest.functions[name];
    const sizes = sizesOf(parameters, values.map((value) => value.shape));
    const arrays = Object.fromEntries(parameters.map((one, i) => [one.name, values[i]]));
    perform(steps, sizes, arrays, this);
  }

  launch(name, values, names, arrays, grid) {
    const { parameters } = this.scan.manifest.kernels[name];
    const buffers = values.filter((_, i) => parameters[i] === "buffer").map((one) => arrays[one].data);
    const scalars = values.map((one, i) => [parameters[i], one]).filter(([kind]) => kind !== "buffer");
    const words = new DataView(new ArrayBuffer(4 * scalars.length));
    scalars.forEach(([kind, number], i) => {
      const value = evaluate(number, names);
      if (kind === "float32") words.setFloat32(4 * i, value, true);
      else words.setInt32(4 * i, value, true);
    });
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    const uniform = this.keep(this.device.createBuffer({ size: words.byteLength, usage }));
    this.device.queue.writeBuffer(uniform, 0, words);
    const pipeline = this.scan.pipelines[name];
    const pass = this.encoder.beginComputePass();
    pass.setPipeline(pipeline);
    const entries = [...buffers, uniform].map((buffer, binding) => ({ binding, resource: { buffer } }));
    pass.setBindGroup(0, this.device.createBindGroup({ layout: pipeline.getBindGroupLayout(0), entries }));
    pass.dispatchWorkgroups(...grid);
    pass.end();
  }
}

/** Arguments on a device, to be run more than once. */
class Session {
  constructor(scan, inputs, sizes) {
    this.scan = scan;
    this.inputs = inputs;
    this.sizes = { ...sizes };
    this.kernels = new Kernels(scan);
    this.arrays = {};
    for (const array of scan.manifest.arrays) {
      const shape = scan.shapeOf(array, sizes);
      this.arrays[array.name] = this.kernels.allocate(array.dtype, shape);
      if (array.read) this.write(array);
    }
  }

  write(array) {
    const data = this.scan.contentOf(array, this.inputs, this.sizes);
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    // A multiple of four bytes is written.
    const whole = bytes.length % 4 ? new Uint8Array(Math.ceil(bytes.length / 4) * 4) : bytes;
    if (whole !== bytes) whole.set(bytes);
    if (whole.length) this.scan.device.queue.writeBuffer(this.arrays[array.name].data, 0, whole);
  }

  async run() {
    const { device, manifest } = this.scan;
    for (const array of manifest.arrays) if (array.read && array.written) this.write(array);
    const kernels = new Kernels(this.scan);
    device.pushErrorScope("out-of-memory");
    device.pushErrorScope("validation");
    kernels.encoder = device.createCommandEncoder();
    perform(manifest.scan, { ...this.sizes }, { ...this.arrays }, kernels);
    device.queue.submit([kernels.encoder.finish()]);
    const errors = [device.popErrorScope(), device.popErrorScope()];
    await device.queue.onSubmittedWorkDone();
    for (const buffer of kernels.made) buffer.destroy();
    const error = (await Promise.all(errors)).find(Boolean);
    if (error) throw new Error(`expected the device to run the kernels, got: ${error.message}`);
  }

  async read() {
    const { device, manifest } = this.scan;
    const outputs = {};
    for (const { name, dtype, written } of manifest.arrays) {
      if (!written) continue;
      const { data, shape } = this.arrays[name];
      const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
      const copy = device.createBuffer({ size: data.size, usage });
      const encoder = device.createCommandEncoder();
      encoder.copyBufferToBuffer(data, 0, copy, 0, data.size);
      device.queue.submit([encoder.finish()]);
      await copy.mapAsync(GPUMapMode.READ);
      outputs[name] = new TYPES[dtype](copy.getMappedRange().slice(0)).subarray(0, cellsOf(shape));
      copy.destroy();
    }
    return outputs;
  }

  destroy() {
    for (const buffer of this.kernels.made) buffer.destroy();
  }
}

export class Scan {
  constructor(manifest, loops, constants, sources) {
    Object.assign(this, { manifest, loops, constants, sources });
    this.adapter = this.device = null;
    this.software = false;
    this.reason = "it was not opened";
    this.pipelines = {};
  }

  /** Compiles the kernels; without WebGPU `adapter` stays null, and `reason` says why. */
  async open() {
    try {
      await openDevice(this);
      this.reason = null;
    } catch (error) {
      this.reason = error.message;
    }
    return this.adapter;
  }

  shapeOf(array, sizes) {
    return array.shape.map((extent) => evaluate(extent, sizes));
  }

  /** What an array begins with: a constant, or what the caller gave. */
  contentOf(array, inputs, sizes) {
    const cells = cellsOf(this.shapeOf(array, sizes));
    const type = TYPES[array.dtype];
    if ("offset" in array) return new type(this.constants, array.offset, cells);
    const data = inputs[array.name];
    if (data === undefined) {
      if (array.written) return new type(cells);
      throw new Error(`expected an array for the input ${array.name}, got none; give it`);
    }
    if (!(data instanceof type) || data.length !== cells) {
      const found = `${data?.constructor?.name} of ${data?.length}`;
      throw new Error(`expected ${array.name} as ${type.name} of ${cells} cells, got ${found}; convert it`);
    }
    return data;
  }

  /** Uniformly distributed inputs, the same for the same seed. */
  inputs(sizes, seed = 1) {
    let state = seed >>> 0;
    const random = () => {
      state = (state + 0x6d2b79f5) >>> 0;
      let x = Math.imul(state ^ (state >>> 15), state | 1);
      x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
      return ((x ^ (x >>> 14)) >>> 0) / 2 ** 32;
    };
    const made = {};
    for (const array of this.manifest.arrays) {
      if (!array.read || "offset" in array) continue;
      const { low, high } = array.values;
      const data = new TYPES[array.dtype](cellsOf(this.shapeOf(array, sizes)));
      const whole = !array.dtype.startsWith("float");
      for (let i = 0; i < data.length; i++) {
        const value = low + (high - low) * random();
        data[i] = whole ? Math.floor(value) : value;
      }
      made[array.name] = data;
    }
    return made;
  }

  /** The loop, one step after the other; with `wide` in 64 bits. */
  loop(inputs, sizes, { wide = false } = {}) {
    const machine = new Loops(this, wide);
    const arrays = {};
    for (const array of this.manifest.arrays) {
      const shape = this.shapeOf(array, sizes);
      if (!array.read) arrays[array.name] = machine.allocate(array.dtype, shape);
      else {
        const data = this.contentOf(array, inputs, sizes);
        arrays[array.name] = { shape, data: array.written ? machine.type(array.dtype).from(data) : data };
      }
    }
    perform(this.manifest.loop, { ...sizes }, arrays, machine);
    const written = this.manifest.arrays.filter((array) => array.written);
    return Object.fromEntries(written.map(({ name }) => [name, arrays[name].data]));
  }

  /** Arguments on the device; `run` and `read` them. */
  session(inputs, sizes) {
    if (!this.device) throw new Error(`expected WebGPU, found none: ${this.reason}; run the loop`);
    return new Session(this, inputs, sizes);
  }

  /** The kernels, once. */
  async run(inputs, sizes) {
    const session = this.session(inputs, sizes);
    try {
      await session.run();
      return await session.read();
    } finally {
      session.destroy();
    }
  }

  /** Largest difference of each output over its largest value, and what it may be. */
  compare(got, want, sizes) {
    return this.manifest.arrays.filter((array) => array.written).map(({ name, bound }) => {
      let apart = 0;
      let scale = 0;
      for (let i = 0; i < want[name].length; i++) {
        const [result, expected] = [got[name][i], want[name][i]];
        if (Number.isFinite(expected)) scale = Math.max(scale, Math.abs(expected));
        if (Object.is(result, expected)) continue;
        const difference = Math.abs(result - expected);
        // Nothing is near what is no number.
        apart = Math.max(apart, Number.isNaN(difference) ? Infinity : difference);
      }
      const error = apart === 0 ? 0 : apart / (scale || 1);
      const steps = evaluate(this.manifest.time, sizes) / this.manifest.bound_steps;
      const allowed = bound * Math.sqrt(Math.max(1, steps));
      return { name, error, allowed, right: error <= allowed };
    });
  }

  /** Largest buffer, in bytes: what a device must be able to bind. */
  bytes(sizes) {
    const width = (array) => TYPES[array.dtype].BYTES_PER_ELEMENT;
    return Math.max(...this.manifest.arrays.map((array) => width(array) * cellsOf(this.shapeOf(array, sizes))));
  }
}

async function openDevice(scan) {
  if (!globalThis.navigator?.gpu) throw new Error("this browser has no WebGPU, or not for this address");
  const adapter = await navigator.gpu.requestAdapter();
  if (!adapter) throw new Error("the browser has WebGPU and no adapter for it");
  const requiredLimits = Object.fromEntries(LIMITS.map((name) => [name, adapter.limits[name]]));
  const requiredFeatures = scan.manifest.features;
  const missing = requiredFeatures.filter((feature) => !adapter.features.has(feature));
  if (missing.length) throw new Error(`the adapter lacks ${missing.join(", ")}`);
  const { subgroupMinSize, subgroupMaxSize } = adapter.info ?? {};
  if (requiredFeatures.includes("subgroups") && !(subgroupMinSize === WARP && subgroupMaxSize === WARP)) {
    throw new Error(`the adapter's subgroups have ${subgroupMinSize} to ${subgroupMaxSize} threads, not ${WARP}`);
  }
  const device = await adapter.requestDevice({ requiredLimits, requiredFeatures });
  const pipelines = Object.entries(scan.manifest.kernels).map(async ([name, kernel]) => {
    const module = device.createShaderModule({ code: scan.sources[name] });
    const compute = { module, entryPoint: kernel.entry };
    scan.pipelines[name] = await device.createComputePipelineAsync({ layout: "auto", compute });
  });
  await Promise.all(pipelines);
  const { vendor, architecture, device: name, description } = adapter.info ?? {};
  const words = [vendor, architecture, name, description].filter(Boolean);
  scan.software = Boolean(adapter.info?.isFallbackAdapter ?? adapter.isFallbackAdapter);
  scan.adapter = [...new Set(words)].join(" ") || "an adapter that does not say its name";
  scan.device = device;
}

async function get(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`expected ${address.pathname}, got status ${answer.status}; serve the whole folder`);
  return answer;
}

/** Loads a folder. */
export async function load(folder = new URL("./", import.meta.url)) {
  const base = new URL(folder, globalThis.location?.href);
  const manifest = await (await get(new URL("manifest.json", base))).json();
  const { loops } = await import(new URL("loops.js", base).href);
  const constants = manifest.constants && (await (await get(new URL(manifest.constants, base))).arrayBuffer());
  const texts = Object.entries(manifest.kernels).map(async ([name, { file }]) => [
    name,
    await (await get(new URL(file, base))).text(),
  ]);
  return new Scan(manifest, loops, constants, Object.fromEntries(await Promise.all(texts)));
}
