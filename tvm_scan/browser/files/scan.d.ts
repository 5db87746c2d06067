// Types of scan.js.

/** A number of a manifest: an integer, a name, or a list of an operator and its operands. */
export type Size = number | string | [string, ...Size[]];
export type Sizes = Record<string, number>;
/** A typed array, of the class of its dtype. */
export type Cells = ArrayBufferView & ArrayLike<number>;
export type Arrays = Record<string, Cells>;
export type Dtype =
  | "float64" | "float32" | "float16" | "int32" | "uint32" | "int16" | "uint16" | "int8" | "uint8" | "bool";

/** What a host does, one of: */
export type Step =
  | { let: string; value: Size }
  | { allocate: string; dtype: Dtype; shape: Size[] }
  | { view: string; of: string; shape: Size[] }
  | { call: string; arguments: string[] }
  | { launch: string; arguments: (string | Size)[]; grid: [Size, Size, Size]; block: [Size, Size, Size] }
  | { if: Size; then: Step[]; else: Step[] }
  | { for: string; extent: Size; do: Step[] };

export interface Parameter {
  name: string;
  dtype: Dtype;
  shape: Size[];
}

/** An array that a caller gives, or gets, or a constant at an offset in the file of constants. */
export interface ArrayEntry extends Parameter {
  read: boolean;
  written: boolean;
  /** Of an input: between which `Scan.inputs` draws. */
  values?: { low: number; high: number };
  /** Of an output: what its error may be at `bound_steps` steps. */
  bound?: number;
  offset?: number;
}

export interface Manifest {
  format: 1;
  name: string;
  target: string;
  versions: Record<string, string>;
  plan: string;
  families: string[];
  features: string[];
  /** Extents that a call brings, with an example of each. */
  sizes: Sizes;
  time: Size;
  /** The size that time follows. */
  length: string | null;
  bound_steps: number;
  arrays: ArrayEntry[];
  constants: string | null;
  kernels: Record<string, { file: string; entry: string; parameters: string[] }>;
  functions: Record<string, { parameters: Parameter[]; steps: Step[] }>;
  loops: Record<string, { parameters: Parameter[] }>;
  scan: Step[];
  loop: Step[];
}

export interface Comparison {
  name: string;
  /** Largest difference over the largest value of the loop. */
  error: number;
  allowed: number;
  right: boolean;
}

/** Arguments on a device. */
export interface Session {
  /** The kernels once; resolves when they have ended. */
  run(): Promise<void>;
  read(): Promise<Arrays>;
  destroy(): void;
}

export declare class Scan {
  readonly manifest: Manifest;
  /** A GPUDevice. */
  readonly device: object | null;
  /** Name of the adapter; null without WebGPU. */
  readonly adapter: string | null;
  /** Whether the adapter is a driver in software, whose times say nothing of a GPU's. */
  readonly software: boolean;
  /** Why there is no adapter; null where there is one. */
  readonly reason: string | null;
  /** Compiles the kernels; resolves to the adapter's name, or null. */
  open(): Promise<string | null>;
  /** Random inputs, the same for the same seed. */
  inputs(sizes: Sizes, seed?: number): Arrays;
  /** The loop in JavaScript, one step after the other; with `wide` in 64 bits. */
  loop(inputs: Arrays, sizes: Sizes, options?: { wide?: boolean }): Arrays;
  session(inputs: Arrays, sizes: Sizes): Session;
  /** The kernels once, and what they wrote. */
  run(inputs: Arrays, sizes: Sizes): Promise<Arrays>;
  compare(got: Arrays, want: Arrays, sizes: Sizes): Comparison[];
  /** Bytes of the largest array. */
  bytes(sizes: Sizes): number;
}

export declare function evaluate(size: Size, names: Sizes): number;
/** Loads a page's folder, the one of this module if none is named. */
export declare function load(folder?: string | URL): Promise<Scan>;
