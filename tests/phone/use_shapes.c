/* Runs a model of several shapes, for tests:
 *   use_shapes FOLDER FILES BATCHxTOKENS ...      for each pair, run FILES/ids-PAIR.bin and FILES/mask-PAIR.bin, and write FILES/out-PAIR.bin
 * and print the first descriptions of tensors before and after, which live as long as the model;
 * and, without pairs, call it wrongly; print code and text of each call. */
#include <stdio.h>
#include <stdlib.h>

#include "romou.h"

static void told(const char* what, romou_status status) { printf("%s: %d %s\n", what, (int)status, status == ROMOU_OK ? "" : romou_error()); }

static int run(romou_model* model, const char* files, const char* pair) {
  long batch = 0, tokens = 0;
  if (sscanf(pair, "%ldx%ld", &batch, &tokens) != 2) exit(2);
  const int64_t shape[] = {batch, tokens};
  const size_t count = (size_t)(batch * tokens);
  const char* inputs[] = {"ids", "mask"};
  char path[4096];
  for (int i = 0; i < 2; ++i) {
    if (romou_reshape(model, inputs[i], shape, 2) != ROMOU_OK) return 1;
    snprintf(path, sizeof path, "%s/%s-%s.bin", files, inputs[i], pair);
    int64_t* data = malloc(count * 8);
    FILE* file = fopen(path, "rb");
    if (file == NULL || fread(data, 8, count, file) != count) exit(2);
    fclose(file);
    if (romou_set(model, inputs[i], data, count * 8) != ROMOU_OK) return 1;
    free(data);
  }
  if (romou_run(model) != ROMOU_OK) return 1;
  romou_tensor output;
  if (romou_output(model, 0, &output) != ROMOU_OK) return 1;
  printf("%s: %lldx%lld rows, %zu bytes\n", pair, (long long)output.shape[0], (long long)output.shape[1], output.bytes);
  void* data = malloc(output.bytes);
  if (romou_get(model, output.name, data, output.bytes) != ROMOU_OK) return 1;
  snprintf(path, sizeof path, "%s/out-%s.bin", files, pair);
  FILE* file = fopen(path, "wb");
  if (file == NULL || fwrite(data, 1, output.bytes, file) != output.bytes) exit(2);
  fclose(file);
  free(data);
  return 0;
}

static void print_described(const char* when, const romou_tensor* tensors) {
  printf("%s", when);
  for (int i = 0; i < 2; ++i) printf(" %s %s %lldx%lld", tensors[i].name, tensors[i].stored, (long long)tensors[i].shape[0], (long long)tensors[i].shape[1]);
  printf("\n");
}

int main(int count, char** arguments) {
  romou_model* model = NULL;
  romou_tensor described[2];
  if (count < 3 || romou_open(arguments[1], NULL, &model) != ROMOU_OK) return told("open", ROMOU_INVALID), 1;
  if (romou_input(model, 1, &described[0]) != ROMOU_OK || romou_output(model, 0, &described[1]) != ROMOU_OK) return 1;
  if (count > 3) print_described("before", described);
  for (int i = 3; i < count; ++i) {
    if (run(model, arguments[2], arguments[i])) return told("run", ROMOU_FAILED), 1;
  }
  if (count > 3) print_described("after", described);
  if (count == 3) {
    const int64_t large[] = {1, 17}, small[] = {1, 8}, negative[] = {1, -1};
    const int64_t ids[17] = {0};
    void* place = NULL;
    told("unknown", romou_reshape(model, "none", small, 2));
    told("negative", romou_reshape(model, "ids", negative, 2));
    told("null", romou_reshape(model, "ids", NULL, 2));
    told("map", romou_map(model, "ids", &place));
    told("large", romou_reshape(model, "ids", large, 2));
    told("large", romou_reshape(model, "mask", large, 2));
    told("not set", romou_run(model));
    told("set", romou_set(model, "ids", ids, sizeof ids));
    told("set", romou_set(model, "mask", ids, sizeof ids));
    told("too large", romou_run(model));
    told("small", romou_reshape(model, "mask", small, 2));
    told("set", romou_set(model, "mask", ids, 64));
    told("different", romou_run(model));
  }
  romou_close(model);
  return 0;
}
