// SPDX-License-Identifier: Apache-2.0
//
// Times an exported model on this device, through romou.hpp:
//   romou_bench FOLDER [INPUT.bin ...] [--variant NAME] [--repeats N] [--hold MS] [--outputs DIR] [--json]
//
// An input is a file of raw numbers in C order; without files, inputs are zeros. A run of a decoder reads one token. Phones lower their clocks between short kernels: before each timing
// the model runs for --hold milliseconds, and the timing follows without a pause. --json prints one document that `romou report` and
// `romou compare` read.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "romou.hpp"

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kRounds = 3;

struct Arguments {
  std::string folder, variant, outputs;
  std::vector<std::string> inputs;
  int repeats = 10;
  double hold_ms = 40;
  bool is_json = false;
};

Arguments parse(int argc, char** argv) {
  Arguments given;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] {
      if (i + 1 >= argc) throw std::runtime_error(word + " needs a value");
      return std::string(argv[++i]);
    };
    const auto number = [&](double lowest, double highest) {
      const std::string text = value();
      char* end = nullptr;
      const double found = std::strtod(text.c_str(), &end);
      if (end == text.c_str() || *end != '\0' || !(found >= lowest && found <= highest)) throw std::runtime_error(word + " " + text + ": must be a number up to " + std::to_string(static_cast<long>(highest)));
      return found;
    };
    if (word == "--json") {
      given.is_json = true;
    } else if (word == "--variant") {
      given.variant = value();
    } else if (word == "--outputs") {
      given.outputs = value();
    } else if (word == "--repeats") {
      given.repeats = static_cast<int>(number(1, 100000));
    } else if (word == "--hold") {
      given.hold_ms = number(0, 60000);
    } else if (word[0] == '-') {
      throw std::runtime_error("unknown option " + word + "; there are --variant, --repeats, --hold, --outputs and --json");
    } else {
      (given.folder.empty() ? given.folder : given.inputs.emplace_back()) = word;
    }
  }
  if (given.folder.empty()) throw std::runtime_error("which model? romou_bench FOLDER [INPUT.bin ...]");
  return given;
}

std::vector<char> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

template <typename Step>
double ms_of(Step step) {
  const auto start = Clock::now();
  step();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

struct Times {
  double open = 0, first = 0;
  std::vector<double> in, out;
  std::vector<std::vector<double>> runs;  ///< of each round
};

/// Return the number that stands behind `"name":` in a JSON text of romou_about, or 0.
double number_in(const std::string& text, const std::string& name) {
  const size_t place = text.find("\"" + name + "\"");
  const size_t colon = place == std::string::npos ? place : text.find(':', place);
  return colon == std::string::npos ? 0 : std::atof(text.c_str() + colon + 1);
}

/// Return the text that stands behind `"name":` in a JSON text of romou_about, with its quotes.
std::string text_in(const std::string& text, const std::string& name) {
  const std::string start = "\"" + name + "\":";
  const size_t place = text.find(start);
  if (place == std::string::npos || text[place + start.size()] != '"') return "\"\"";
  size_t end = place + start.size() + 1;
  while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
  return text.substr(place + start.size(), end + 1 - place - start.size());
}

void print_table(const romou::Model& model, const Times& times) {
  const std::string about = model.about();
  std::vector<double> all;
  for (const std::vector<double>& round : times.runs) all.insert(all.end(), round.begin(), round.end());
  std::printf("%s\n", about.c_str());
  std::printf("read the model                  %10.3f ms\n", number_in(about, "read"));
  const std::string steps = about.substr(std::min(about.size(), about.find("\"ms\"")));
  std::printf("programs                        %10.3f ms  %.0f loaded, %.0f compiled\n", number_in(steps, "programs"), number_in(about, "cached"), number_in(about, "compiled"));
  std::printf("weights to the device           %10.3f ms\n", number_in(steps, "weights"));
  std::printf("first run                       %10.3f ms\n", times.first);
  std::printf("inputs to the device            %10.3f ms\n", mean(times.in));
  std::printf("run                             %10.3f ms  best of %zu: %.3f\n", mean(all), all.size(), *std::min_element(all.begin(), all.end()));
  std::printf("outputs from the device         %10.3f ms\n", mean(times.out));
}

void print_json(const romou::Model& model, const Times& times, const std::string& folder) {
  std::time_t now = std::time(nullptr);
  char date[32] = "";
  std::tm utc{};
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  const auto list = [](const std::vector<double>& values) {
    std::string text = "[";
    for (const double value : values) text += (text.size() > 1 ? ", " : "") + std::to_string(value);
    return text + "]";
  };
  std::string runs;
  for (const std::vector<double>& round : times.runs) runs += (runs.empty() ? "" : ", ") + list(round);
  // A file of `romou bench` without operators, with more of the start.
  std::printf("{\"kind\": \"romou bench\", \"schema\": 2, \"romou\": \"%s\", \"tvm\": \"%s\", \"time\": \"%s\", \"operators\": [], \"module\": null,\n", romou_version(), ROMOU_TVM_VERSION, date);
  std::string name;
  for (const char c : folder) (c == '"' || c == '\\' ? name += '\\' : name) += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  const std::string about = model.about();
  std::printf(" \"model\": \"%s\", \"target\": %s,\n", name.c_str(), text_in(about, "target").c_str());
  std::printf(" \"device\": {\"kind\": %s, \"name\": %s, \"driver\": %s, \"platform\": %s},\n", text_in(about, "kind").c_str(), text_in(about, "device").c_str(), text_in(about, "driver").c_str(),
              text_in(about, "platform").c_str());
  std::printf(" \"about\": %s,\n", about.c_str());
  std::printf(" \"open_ms\": %.3f, \"first_run_ms\": %.3f, \"inputs_ms\": %s, \"outputs_ms\": %s,\n", times.open, times.first, list(times.in).c_str(), list(times.out).c_str());
  std::printf(" \"model_times_ms\": [%s], \"reference_times_ms\": []}\n", runs.c_str());
}

Times time_model(romou::Model& model, const Arguments& given, const std::vector<std::vector<char>>& inputs, std::vector<std::vector<char>>& outputs) {
  Times times;
  const auto copy_in = [&] {
    for (size_t i = 0; i < inputs.size(); ++i) model.set(model.inputs()[i].name, inputs[i].data(), inputs[i].size());
    model.wait();
  };
  const auto copy_out = [&] {
    for (size_t i = 0; i < outputs.size(); ++i) model.get(model.outputs()[i].name, outputs[i].data(), outputs[i].size());
  };
  const bool is_decoder = romou_rewind(model.get(), 0) == ROMOU_OK;
  const auto run = [&] {
    if (!is_decoder) return model.run();
    model.rewind(0);
    model.decode({0});
  };
  copy_in();
  times.first = ms_of(run);
  for (int round = 0; round < kRounds; ++round) {
    times.runs.emplace_back();
    times.in.push_back(ms_of(copy_in));
    for (int i = 0; i < given.repeats; ++i) {
      const auto until = Clock::now() + std::chrono::duration<double, std::milli>(i == 0 ? given.hold_ms : 0);
      while (Clock::now() < until) run();
      times.runs.back().push_back(ms_of(run));
    }
    times.out.push_back(ms_of(copy_out));
  }
  return times;
}

int run(const Arguments& given) {
  romou_options options{};
  if (!given.variant.empty()) options.variant = given.variant.c_str();
  const auto start = Clock::now();
  romou::Model model(given.folder, options);
  const double open_ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  if (!given.inputs.empty() && given.inputs.size() != model.inputs().size()) throw std::runtime_error("the model has " + std::to_string(model.inputs().size()) + " inputs");
  std::vector<std::vector<char>> inputs, outputs;
  for (size_t i = 0; i < model.inputs().size(); ++i) inputs.push_back(given.inputs.empty() ? std::vector<char>(model.inputs()[i].bytes) : read_file(given.inputs[i]));
  for (const romou_tensor& output : model.outputs()) outputs.emplace_back(output.bytes);
  Times times = time_model(model, given, inputs, outputs);
  times.open = open_ms;
  given.is_json ? print_json(model, times, given.folder) : print_table(model, times);
  for (size_t i = 0; i < outputs.size() && !given.outputs.empty(); ++i) {
    const std::string path = given.outputs + "/output" + std::to_string(i) + ".bin";
    std::ofstream file(path, std::ios::binary);
    if (!file.write(outputs[i].data(), static_cast<std::streamsize>(outputs[i].size()))) throw std::runtime_error("cannot write " + path);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "romou_bench: %s\n", error.what());
    return 1;
  }
}
