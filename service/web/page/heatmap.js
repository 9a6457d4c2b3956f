// A map of road probabilities, 0 to 255 at the size of the photo, and what is drawn from it.
//
// A pixel is road where its value >= ceil(255 * threshold). /segment has the same rule, so the mask saved
// here equals the one that it sends.

const OVERLAY_COLOUR = [60, 220, 110];
const MAX_PREVIEW_PIXELS = 2_000_000; // larger photos are drawn smaller; counting and saving use every pixel

export const level = (threshold) => Math.ceil(255 * threshold);

function pixelsOf(bitmap, width, height) {
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.fillStyle = "white"; // as the service does behind transparent pixels
  context.fillRect(0, 0, width, height);
  context.drawImage(bitmap, 0, 0, width, height);
  return context.getImageData(0, 0, width, height).data;
}

// counts[v]: how many pixels have the value v or more
function countAtLeast(pixels) {
  const counts = new Uint32Array(257);
  for (let i = 0; i < pixels.length; i += 4) counts[pixels[i]] += 1;
  for (let value = 255; value >= 0; value -= 1) counts[value] += counts[value + 1];
  return counts;
}

export class Heatmap {
  static async of(mapFile, photoFile) {
    const exact = { colorSpaceConversion: "none", premultiplyAlpha: "none" };
    const map = await createImageBitmap(mapFile, exact);
    const photo = await createImageBitmap(photoFile).catch(() => null); // the browser does not support the format
    return new Heatmap(map, photo);
  }

  constructor(map, photo) {
    this.map = map;
    this.width = map.width;
    this.height = map.height;
    this.counts = countAtLeast(pixelsOf(map, map.width, map.height));
    const scale = Math.min(1, Math.sqrt(MAX_PREVIEW_PIXELS / (map.width * map.height)));
    this.size = [Math.max(1, Math.round(map.width * scale)), Math.max(1, Math.round(map.height * scale))];
    this.values = pixelsOf(map, ...this.size);
    this.photo = photo && pixelsOf(photo, ...this.size);
    photo?.close(); // frees the memory at once; the garbage collector would not
  }

  close() {
    this.map.close();
  }

  roadFraction(threshold) {
    return this.counts[level(threshold)] / (this.width * this.height);
  }

  draw(canvas, view, threshold) {
    const [width, height] = this.size;
    if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = this.size;
    const pixels = view === "mask" ? paintMask(this.values, threshold) : this.#paintPhoto(view, threshold);
    canvas.getContext("2d").putImageData(new ImageData(pixels, width, height), 0, 0);
  }

  #paintPhoto(view, threshold) {
    const pixels = new Uint8ClampedArray(this.photo);
    if (view === "photo") return pixels;
    const least = level(threshold);
    for (let i = 0; i < pixels.length; i += 4) {
      if (this.values[i] < least) continue;
      for (let c = 0; c < 3; c += 1) pixels[i + c] = (pixels[i + c] + OVERLAY_COLOUR[c]) >> 1;
    }
    return pixels;
  }

  maskFile(threshold) {
    const canvas = new OffscreenCanvas(this.width, this.height);
    const pixels = paintMask(pixelsOf(this.map, this.width, this.height), threshold);
    canvas.getContext("2d").putImageData(new ImageData(pixels, this.width, this.height), 0, 0);
    return canvas.convertToBlob({ type: "image/png" });
  }
}

function paintMask(values, threshold) {
  const pixels = new Uint8ClampedArray(values.length);
  const least = level(threshold);
  for (let i = 0; i < values.length; i += 4) {
    const value = values[i] >= least ? 255 : 0;
    pixels[i] = pixels[i + 1] = pixels[i + 2] = value;
    pixels[i + 3] = 255;
  }
  return pixels;
}
