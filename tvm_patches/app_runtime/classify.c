/* SPDX-License-Identifier: Apache-2.0
 *
 * Classifies a picture with a model that `romou export` wrote:     classify FOLDER PICTURE.ppm
 *
 * The picture is a binary PPM (P6; `convert cat.jpg cat.ppm` makes one). It is scaled to the model's first input, (1, 3, height, width) or
 * (1, height, width, 3) of float32, and normalised as ImageNet's networks expect it. The five largest numbers of the first output are printed.
 *
 *   cc classify.c -Iphone_runtime -Lphone_runtime -lromou -Wl,-rpath,phone_runtime -o classify */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "romou.h"

#define TOP 5

static const float kMean[3] = {0.485f, 0.456f, 0.406f}, kDeviation[3] = {0.229f, 0.224f, 0.225f};

typedef struct picture {
  int width, height;
  unsigned char* pixels; /* red, green, blue of each pixel, row by row */
} picture;

static int fail(const char* what, const char* why) {
  fprintf(stderr, "classify: %s: %s\n", what, why);
  return 1;
}

static int read_picture(const char* path, picture* read) {
  int most = 0;
  FILE* file = fopen(path, "rb");
  if (file == NULL) return fail(path, "cannot be read");
  const int is_ppm = fscanf(file, "P6 %d %d %d", &read->width, &read->height, &most) == 3 && fgetc(file) != EOF && most == 255 && read->width > 0 && read->height > 0 &&
                     read->width < 32768 && read->height < 32768;
  const size_t bytes = is_ppm ? (size_t)read->width * read->height * 3 : 0;
  read->pixels = is_ppm ? malloc(bytes) : NULL;
  const int is_whole = read->pixels != NULL && fread(read->pixels, 1, bytes, file) == bytes;
  fclose(file);
  return is_whole ? 0 : fail(path, "is no binary PPM of 8 bits (P6)");
}

/* The picture's value at a place between pixels, by the four around it. */
static float sample(const picture* from, float x, float y, int channel) {
  x = x < 0 ? 0 : x > from->width - 1 ? from->width - 1 : x;
  y = y < 0 ? 0 : y > from->height - 1 ? from->height - 1 : y;
  const int left = (int)x, top = (int)y, right = left + 1 < from->width ? left + 1 : left, bottom = top + 1 < from->height ? top + 1 : top;
  const unsigned char *upper = from->pixels + (size_t)top * from->width * 3 + channel, *lower = from->pixels + (size_t)bottom * from->width * 3 + channel;
  const float dx = x - left, dy = y - top;
  return (1 - dy) * ((1 - dx) * upper[3 * left] + dx * upper[3 * right]) + dy * ((1 - dx) * lower[3 * left] + dx * lower[3 * right]);
}

static int classify(romou_model* model, const picture* from) {
  romou_tensor input, output;
  if (romou_input(model, 0, &input) != ROMOU_OK || romou_output(model, 0, &output) != ROMOU_OK) return fail("model", romou_error());
  const int is_first = input.rank == 4 && input.shape[1] == 3; /* channels before rows */
  if (strcmp(input.dtype, "float32") != 0 || strcmp(output.dtype, "float32") != 0 || input.rank != 4 || input.shape[0] != 1 || (!is_first && input.shape[3] != 3)) {
    return fail(input.name, "is no picture of float32, (1, 3, height, width) or (1, height, width, 3)");
  }
  const int64_t height = input.shape[is_first ? 2 : 1], width = input.shape[is_first ? 3 : 2];
  const size_t classes = output.bytes / sizeof(float);
  float *values = malloc(input.bytes), *scores = malloc(output.bytes);
  if (values == NULL || scores == NULL) return fail("memory", "there is not enough");
  for (int c = 0; c < 3; ++c) {
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        const float value = sample(from, (x + 0.5f) * from->width / width - 0.5f, (y + 0.5f) * from->height / height - 0.5f, c) / 255;
        values[is_first ? (c * height + y) * width + x : (y * width + x) * 3 + c] = (value - kMean[c]) / kDeviation[c];
      }
    }
  }
  if (romou_set(model, input.name, values, input.bytes) != ROMOU_OK || romou_run(model) != ROMOU_OK || romou_get(model, output.name, scores, output.bytes) != ROMOU_OK) {
    return fail("run", romou_error());
  }
  for (int place = 0; place < TOP && (size_t)place < classes; ++place) {
    size_t best = 0;
    for (size_t i = 1; i < classes; ++i) best = scores[i] > scores[best] ? i : best;
    printf("class %4zu  %.9g\n", best, scores[best]);
    scores[best] = -1e30f;
  }
  free(values);
  free(scores);
  return 0;
}

int main(int argc, char** argv) {
  picture from = {0, 0, NULL};
  romou_model* model = NULL;
  if (argc != 3) return fail("usage", "classify FOLDER PICTURE.ppm");
  if (read_picture(argv[2], &from) != 0) return 1;
  if (romou_open(argv[1], NULL, &model) != ROMOU_OK) return fail(argv[1], romou_error());
  const int code = classify(model, &from);
  romou_close(model);
  free(from.pixels);
  return code;
}
