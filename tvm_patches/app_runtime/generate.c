/* SPDX-License-Identifier: Apache-2.0
 *
 * Prints tokens that a decoder, which `romou export` wrote, makes of a prompt:     generate FOLDER TOKENS ID [ID ...]
 *
 * Each is the most likely one, and is printed as soon as it is known. The rates are printed to the standard error.
 *
 *   cc generate.c -Iphone_runtime -Lphone_runtime -lromou -Wl,-rpath,phone_runtime -o generate */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "romou.h"

#define MOST 4096

static double seconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int generate(romou_model* model, const int64_t* prompt, size_t count, long tokens) {
  int64_t next = 0;
  const double started = seconds();
  romou_status status = romou_decode(model, prompt, count, &next);
  const double read = seconds();
  for (long made = 1; status == ROMOU_OK; ++made) {
    printf(made == 1 ? "%lld" : ",%lld", (long long)next);
    fflush(stdout);
    if (made >= tokens) {
      const double ended = seconds();
      printf("\n");
      fprintf(stderr, "%.1f tokens of the prompt a second", (double)count / (read - started));
      if (made > 1) fprintf(stderr, ", %.1f generated tokens a second", (double)(made - 1) / (ended - read));
      fprintf(stderr, "\n%s\n", romou_about(model));
      return 0;
    }
    status = romou_decode(model, &next, 1, &next);
  }
  fprintf(stderr, "generate: %s\n", romou_error());
  return 1;
}

int main(int argc, char** argv) {
  static int64_t prompt[MOST];
  romou_model* model = NULL;
  if (argc < 4 || argc - 3 > MOST) {
    fprintf(stderr, "usage: generate FOLDER TOKENS ID [ID ...], at most %d\n", MOST);
    return 1;
  }
  for (int i = 3; i < argc; ++i) prompt[i - 3] = atoll(argv[i]);
  if (romou_open(argv[1], NULL, &model) != ROMOU_OK) {
    fprintf(stderr, "generate: %s: %s\n", argv[1], romou_error());
    return 1;
  }
  const int code = generate(model, prompt, (size_t)(argc - 3), atol(argv[2]));
  romou_close(model);
  return code;
}
