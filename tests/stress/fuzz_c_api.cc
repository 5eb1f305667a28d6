// Calls romou.h in random orders, and compares outputs with the right ones. fuzz_c_api.py exports the models, and compiles this file with the library
// and a sanitizer.
//   fuzz_c_api FOLDER SEED FIRST SECONDS [CASES]
// FOLDER has a folder for each model, which its name describes: "fixed-0.5", "padded-0.25", "sized-0.125". Its inputs a and b have rows x 8 numbers, its
// outputs are LeakyRelu(a + b) with that slope, and a + b transposed. FOLDER/odd has copies with a file that is none, FOLDER/decoder and FOLDER/appending
// are decoders of 64 words with room for 24 tokens.
// Every case prints its number before it begins. The exit code is 1 at the first wrong output, code or text.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "romou.h"

namespace {

constexpr size_t kColumns = 8;
constexpr int kOperations = 50, kThreads = 3, kMostOpen = 5;
// A hang ends the process. A call that takes so much processor time is at fault as well; sanitizers are several times slower than the product.
constexpr unsigned kHangS = 300;
constexpr double kLongestCallS = 20;
const char* const kCodes[] = {"OK", "INVALID", "MISSING", "DAMAGED", "NO_DEVICE", "FAILED", "NO_MEMORY"};

using Shape = std::vector<int64_t>;
using Numbers = std::vector<float>;

std::atomic<size_t> counts[std::size(kCodes)];

[[noreturn]] void fault(const std::string& what) {
  std::fprintf(stderr, "fault: %s; the last error is '%s'\n", what.c_str(), romou_error());
  std::_Exit(1);
}

void expect(bool condition, const char* what) {
  if (!condition) fault(what);
}

/// Count a call's code, and check that an error has a text.
romou_status called(romou_status status) {
  counts[status] += 1;
  if (status != ROMOU_OK) expect(*romou_error() != '\0', "an error has no text");
  return status;
}

void expect_code(romou_status status, std::initializer_list<romou_status> allowed, const std::string& what) {
  called(status);
  if (std::find(allowed.begin(), allowed.end(), status) == allowed.end()) fault(what + " ended with " + kCodes[status]);
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  /// Return a number below `count`.
  size_t below(size_t count) { return engine_() % count; }
  bool once_in(size_t count) { return below(count) == 0; }
  template <typename List>
  const auto& of(const List& list) {
    return *std::next(std::begin(list), static_cast<ptrdiff_t>(below(std::size(list))));
  }
  uint64_t seed() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

/// Bytes that end at a page which nobody may touch.
class Guarded {
 public:
  explicit Guarded(size_t bytes) : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))), whole_((bytes + page_ - 1) / page_ * page_ + page_), bytes_(bytes) {
    start_ = static_cast<char*>(mmap(nullptr, whole_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    expect(start_ != MAP_FAILED && mprotect(start_ + whole_ - page_, page_, PROT_NONE) == 0, "the fuzzer has no memory");
  }
  Guarded(const Numbers& numbers) : Guarded(numbers.size() * sizeof(float)) {
    if (!numbers.empty()) std::memcpy(data(), numbers.data(), bytes_);
  }
  Guarded(const Guarded&) = delete;
  ~Guarded() { munmap(start_, whole_); }
  void* data() const { return start_ + whole_ - page_ - bytes_; }
  size_t size() const { return bytes_; }
  Numbers numbers() const {
    Numbers numbers(bytes_ / sizeof(float));
    if (bytes_ != 0) std::memcpy(numbers.data(), data(), bytes_);
    return numbers;
  }

 private:
  size_t page_, whole_, bytes_;
  char* start_;
};

struct Network {
  std::string folder, kind;
  float slope;
  std::map<std::string, std::string> files;
  std::vector<std::string> inputs, outputs;

  bool has_shapes() const { return kind != "fixed"; }
  int64_t most_rows() const { return kind == "fixed" ? 4 : kind == "padded" ? 64 : 16; }
  bool takes(const Shape& a, const Shape& b) const { return a == b && a.size() == 2 && a[0] > 0 && a[0] <= most_rows() && a[1] == kColumns; }

  Numbers output(size_t index, const Numbers& a, const Numbers& b) const {
    const size_t rows = a.size() / kColumns;
    Numbers right(a.size());
    for (size_t i = 0; i < a.size(); ++i) {
      const float sum = a[i] + b[i];
      (index == 0 ? right[i] : right[i % kColumns * rows + i / kColumns]) = index == 0 && sum < 0 ? slope * sum : sum;
    }
    return right;
  }
};

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A model in memory, whose bytes are overwritten when this goes, as romou.h allows.
class MemoryFiles {
 public:
  explicit MemoryFiles(const std::map<std::string, std::string>& files) {
    for (const auto& [name, content] : files) {
      copies_.push_back(std::make_unique<Guarded>(content.size()));
      std::memcpy(copies_.back()->data(), content.data(), content.size());
      listed_.push_back({name.c_str(), copies_.back()->data(), content.size()});
    }
  }
  romou_status open(const romou_options* options, romou_model** model) const { return romou_open_memory(listed_.data(), listed_.size(), options, model); }

 private:
  std::vector<std::unique_ptr<Guarded>> copies_;
  std::vector<romou_file> listed_;
};

size_t bytes_of(const Shape& shape) {
  size_t bytes = sizeof(float);
  for (const int64_t side : shape) {
    if (side < 0 || side > INT32_MAX || __builtin_mul_overflow(bytes, static_cast<size_t>(side), &bytes)) return SIZE_MAX;
  }
  return bytes;
}

Numbers random_numbers(Random& random, size_t count) {
  Numbers numbers(count);
  for (float& number : numbers) number = (static_cast<float>(random.below(2001)) - 1000) / 4;
  return numbers;
}

/// An open model, and what its next calls have to give.
class Opened {
 public:
  Opened(const Network& network, bool in_memory) : network_(network) {
    const romou_status status = in_memory ? MemoryFiles(network.files).open(nullptr, &model_) : romou_open(network.folder.c_str(), nullptr, &model_);
    expect_code(status, {ROMOU_OK}, "romou_open");
    expect(romou_input_count(model_) == 2 && romou_output_count(model_) == 2, "the number of inputs and outputs");
    for (Input& input : inputs_) input.shape = {network.most_rows(), kColumns};
    about_ = romou_about(model_);
  }
  Opened(const Opened&) = delete;
  ~Opened() {
    check_described();
    romou_close(model_);
  }

  void call(Random& random) {
    using Call = void (Opened::*)(Random&);
    constexpr Call calls[] = {&Opened::describe, &Opened::reshape, &Opened::set, &Opened::set, &Opened::run, &Opened::run, &Opened::get, &Opened::get, &Opened::map, &Opened::unmap, &Opened::mistake};
    (this->*random.of(calls))(random);
    if (random.once_in(8)) check_described();
  }

  /// Set, run and get, all of it right.
  void use(Random& random) {
    if (!mapped_.empty()) return;
    const Shape shape{network_.has_shapes() ? 1 + static_cast<int64_t>(random.below(static_cast<size_t>(network_.most_rows()))) : network_.most_rows(), kColumns};
    for (size_t i = 0; i < 2; ++i) {
      reshape_to(i, shape);
      set_right(random, i);
    }
    start(random);
    for (size_t i = 0; i < 2; ++i) get_right(i);
  }

 private:
  struct Input {
    Shape shape;
    std::optional<Numbers> numbers;
  };
  struct Described {
    romou_tensor tensor;
    std::string name, dtype, stored;
    Shape shape;
  };

  void describe(Random& random) {
    const bool is_input = random.once_in(2);
    const size_t index = random.below(2);
    romou_tensor tensor;
    expect_code((is_input ? romou_input : romou_output)(model_, index, &tensor), {ROMOU_OK}, "describing a tensor");
    const Shape shape(tensor.shape, tensor.shape + tensor.rank);
    expect((is_input ? network_.inputs : network_.outputs)[index] == tensor.name, "another name");
    if (is_input) expect(shape == inputs_[index].shape, "another shape of an input");
    if (!is_input && ran_.has_value()) expect(shape == output_shape(index), "another shape of an output");
    expect(tensor.bytes == bytes_of(shape), "other bytes than those of the shape");
    described_.push_back({tensor, tensor.name, tensor.dtype, tensor.stored, shape});
  }

  /// Descriptions live as long as the model.
  void check_described() const {
    for (const Described& each : described_) {
      const romou_tensor& tensor = each.tensor;
      expect(each.name == tensor.name && each.dtype == tensor.dtype && each.stored == tensor.stored, "a described text has changed");
      expect(std::equal(each.shape.begin(), each.shape.end(), tensor.shape), "a described shape has changed");
    }
    expect(about_ == romou_about(model_), "romou_about has changed");
  }

  void reshape(Random& random) {
    constexpr int64_t rows[] = {1, 2, 3, 4, 5, 8, 15, 16, 17, 63, 64, 65, 0, -1, 1000000, INT32_MAX, int64_t{INT32_MAX} + 1, INT64_MAX, INT64_MIN, int64_t{1} << 61};
    Shape shape{rows[random.below(random.once_in(4) ? std::size(rows) : 12)], kColumns};
    if (random.once_in(10)) shape.resize(random.below(5), 8);
    if (random.once_in(20)) shape.assign(40, INT32_MAX);
    const size_t first = random.below(2);
    reshape_to(first, shape);
    if (random.below(4) != 0) reshape_to(1 - first, shape);
  }

  void reshape_to(size_t index, const Shape& shape) {
    Input& input = inputs_[index];
    const romou_status status = romou_reshape(model_, network_.inputs[index].c_str(), shape.data(), shape.size());
    const bool is_right = shape == input.shape || (network_.has_shapes() && bytes_of(shape) != SIZE_MAX);
    expect_code(status, {is_right ? ROMOU_OK : ROMOU_INVALID}, "romou_reshape");
    if (is_right && shape != input.shape) input = {shape, {}};
  }

  void set(Random& random) { set_right(random, random.below(2)); }

  void set_right(Random& random, size_t index) {
    Input& input = inputs_[index];
    if (bytes_of(input.shape) > 1 << 20) return;
    Numbers numbers = random_numbers(random, bytes_of(input.shape) / sizeof(float));
    const Guarded buffer(numbers);
    const bool is_mapped = mapped_.count(network_.inputs[index]) != 0;
    expect_code(romou_set(model_, network_.inputs[index].c_str(), buffer.data(), buffer.size()), {is_mapped ? ROMOU_INVALID : ROMOU_OK}, "romou_set");
    if (!is_mapped) input.numbers = std::move(numbers);
  }

  void run(Random& random) {
    // Many random orders leave an input without a value.
    if (random.once_in(2)) set(random);
    start(random);
  }

  void start(Random& random) {
    const bool waits = random.once_in(2);
    const romou_status status = waits ? romou_run(model_) : romou_start(model_);
    const auto& [a, b] = inputs_;
    const bool is_right = a.numbers.has_value() && b.numbers.has_value() && mapped_.empty() && network_.takes(a.shape, b.shape);
    expect_code(status, {is_right ? ROMOU_OK : ROMOU_INVALID}, "a run");
    if (is_right) ran_.reset();
    if (status == ROMOU_OK) ran_ = {*a.numbers, *b.numbers};
    if (!waits || random.once_in(4)) expect_code(romou_wait(model_), {ROMOU_OK}, "romou_wait");
  }

  Shape output_shape(size_t index) const {
    const int64_t rows = static_cast<int64_t>(ran_->first.size() / kColumns);
    return index == 0 ? Shape{rows, kColumns} : Shape{kColumns, rows};
  }

  void get(Random& random) { get_right(random.below(2)); }

  void get_right(size_t index) {
    const char* name = network_.outputs[index].c_str();
    const Guarded buffer(ran_.has_value() ? ran_->first.size() * sizeof(float) : bytes_of(inputs_[0].shape) % 4096);
    expect_code(romou_get(model_, name, buffer.data(), buffer.size()), {ran_.has_value() ? ROMOU_OK : ROMOU_INVALID}, "romou_get");
    if (ran_.has_value()) expect(buffer.numbers() == network_.output(index, ran_->first, ran_->second), "a wrong output");
  }

  void map(Random& random) {
    const bool is_input = random.once_in(2);
    const size_t index = random.below(2);
    const std::string& name = (is_input ? network_.inputs : network_.outputs)[index];
    const bool is_right = !network_.has_shapes() && mapped_.count(name) == 0 && (is_input || ran_.has_value());
    void* data = &data;
    expect_code(romou_map(model_, name.c_str(), &data), {is_right ? ROMOU_OK : ROMOU_INVALID}, "romou_map");
    expect(is_right == (data != nullptr), "a place of a mapped tensor");
    if (!is_right) return;
    Numbers numbers = is_input ? random_numbers(random, bytes_of(inputs_[index].shape) / sizeof(float)) : network_.output(index, ran_->first, ran_->second);
    if (is_input) {
      std::memcpy(data, numbers.data(), numbers.size() * sizeof(float));
      inputs_[index].numbers = std::move(numbers);
    } else {
      expect(std::memcmp(data, numbers.data(), numbers.size() * sizeof(float)) == 0, "a wrong mapped output");
    }
    mapped_[name] = true;
  }

  void unmap(Random& random) {
    const std::string name = mapped_.empty() ? random.of(network_.inputs) : random.of(mapped_).first;
    expect_code(romou_unmap(model_, name.c_str()), {mapped_.erase(name) != 0 ? ROMOU_OK : ROMOU_INVALID}, "romou_unmap");
  }

  /// Calls that are wrong whatever came before.
  void mistake(Random& random) {
    romou_tensor tensor;
    void* place = nullptr;
    float numbers[4] = {};
    const char *input = network_.inputs[0].c_str(), *output = network_.outputs[1].c_str();
    const std::string unknown = random.of(std::vector<std::string>{"", "nonesuch", std::string(100000, 'x'), "\xff\xfe", "\xf0\x9f\xa6\x99", network_.inputs[0] + "x"});
    const int64_t side = 4;
    // No tensor of floats has so many.
    const size_t wrong_bytes = random.once_in(2) ? 13 : SIZE_MAX - random.below(3);
    const auto wrong = [&] {
      switch (random.below(17)) {
        case 0: return romou_input(model_, 2 + random.below(9), &tensor);
        case 1: return romou_output(model_, SIZE_MAX, &tensor);
        case 2: return romou_input(model_, 0, nullptr);
        case 3: return romou_output(nullptr, 0, &tensor);
        case 4: return romou_set(model_, unknown.c_str(), numbers, sizeof numbers);
        case 5: return romou_set(model_, nullptr, numbers, sizeof numbers);
        case 6: return romou_set(model_, input, nullptr, 128);
        case 7: return romou_set(model_, input, numbers, wrong_bytes);
        case 8: return romou_get(model_, unknown.c_str(), numbers, sizeof numbers);
        case 9: return romou_get(model_, output, numbers, wrong_bytes);
        case 10: return romou_get(model_, nullptr, numbers, sizeof numbers);
        case 11: return romou_get(model_, input, numbers, sizeof numbers);
        case 12: return romou_reshape(model_, unknown.c_str(), &side, 1);
        case 13: return romou_reshape(model_, input, nullptr, 1);
        case 14: return romou_map(model_, unknown.c_str(), &place);
        case 15: return romou_map(model_, input, nullptr);
        default: return romou_unmap(nullptr, input);
      }
    }();
    expect_code(wrong, {ROMOU_INVALID}, "a wrong call");
  }

  const Network& network_;
  romou_model* model_ = nullptr;
  Input inputs_[2];
  std::optional<std::pair<Numbers, Numbers>> ran_;
  std::map<std::string, bool> mapped_;
  std::vector<Described> described_;
  std::string about_;
};

uint32_t adler32(const std::string& text) {
  uint32_t low = 1, high = 0;
  for (const unsigned char byte : text) low = (low + byte) % 65521, high = (high + low) % 65521;
  return high << 16 | low;
}

/// Return model.json with changes, and the checksum of the changed text.
std::string forged(Random& random, std::string text) {
  const size_t end = text.rfind("\"checksum\"");
  text.resize(end);
  const auto token = [&](bool is_number) {
    std::vector<std::pair<size_t, size_t>> found;
    for (size_t i = 0; i < text.size(); ++i) {
      const size_t last = is_number ? text.find_first_not_of("-0123456789", i) : text[i] == '"' ? text.find('"', i + 1) : i;
      if (last == std::string::npos || last == i) continue;
      found.emplace_back(i + !is_number, last - i - !is_number);
      i = last;
    }
    return found.empty() ? std::pair<size_t, size_t>{0, 0} : random.of(found);
  };
  const char* const numbers[] = {"0", "1", "2", "3", "-1", "4", "5", "8", "9", "16", "64", "99", "255", "256", "1000000000", "2147483647", "2147483648", "4294967295", "9223372036854775807", "-9223372036854775808", "1e3", "0.5", "1e999", "null", "[]", "\"4\"", "true"};
  const std::string strings[] = {"", "x", "..", "../x", "a/b", "main", "float64", "float16", "int32", "float32x4", "bool", "handle", "\\u0000", "\\ud83e\\udd99", "\xf0\x9f\xa6\x99", "\xff", "cpu", "opencl", "cuda", "shapes", "inputs", std::string(70000, 'y')};
  for (size_t changes = 1 + random.below(3); changes > 0; --changes) {
    const size_t how = random.below(8), at = random.below(text.size() + 1);
    if (how < 4) {
      const auto [from, count] = token(true);
      text.replace(from, count, random.of(numbers));
    } else if (how == 4) {
      const auto [from, count] = token(false);
      text.replace(from, count, random.of(strings));
    } else if (how == 5) {
      text.erase(at, 1 + random.below(40));
    } else if (how == 6) {
      text.insert(at, text.substr(random.below(text.size() + 1), random.below(60)));
    } else if (random.once_in(4)) {
      text.insert(at, 100000, random.once_in(2) ? '[' : '{');
    }
  }
  return text + "\"checksum\": " + std::to_string(adler32(text)) + "\n}";
}

/// Use a model of unknown inputs and outputs, whatever its calls end with.
void use_unknown(romou_model* model) {
  for (size_t i = 0; i < romou_input_count(model); ++i) {
    romou_tensor tensor;
    expect_code(romou_input(model, i, &tensor), {ROMOU_OK}, "describing an input");
    if (tensor.bytes > 1 << 20) continue;
    const Guarded buffer(tensor.bytes);
    called(romou_set(model, tensor.name, buffer.data(), buffer.size()));
  }
  called(romou_run(model));
  const int64_t tokens[] = {1, 0, 63, 5, 5, 2};
  int64_t next = 0;
  for (const size_t count : {size_t{6}, size_t{1}}) called(romou_decode(model, tokens, count, &next));
  for (size_t i = 0; i < romou_output_count(model); ++i) {
    romou_tensor tensor;
    expect_code(romou_output(model, i, &tensor), {ROMOU_OK}, "describing an output");
    if (tensor.bytes > 1 << 20) continue;
    const Guarded buffer(tensor.bytes);
    called(romou_get(model, tensor.name, buffer.data(), buffer.size()));
  }
}

void open_forged(Random& random, const Network& network) {
  std::map<std::string, std::string> files = network.files;
  files["model.json"] = forged(random, files["model.json"]);
  romou_model* model = nullptr;
  const clock_t start = std::clock();
  if (called(MemoryFiles(files).open(nullptr, &model)) == ROMOU_OK) use_unknown(model);
  romou_close(model);
  if (static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC > kLongestCallS) fault("a forged model.json took " + std::to_string(kLongestCallS) + " s:\n" + files["model.json"]);
}

void open_damaged(Random& random, const Network& network) {
  std::map<std::string, std::string> files = network.files;
  auto& [name, content] = *std::next(files.begin(), static_cast<ptrdiff_t>(random.below(files.size())));
  romou_model* model = nullptr;
  romou_status right = ROMOU_DAMAGED;
  switch (random.below(5)) {
    case 0: content.resize(random.below(content.size())); break;
    case 1: content[random.below(content.size())] ^= static_cast<char>(1 << random.below(8)); break;
    case 2: content += 'x'; break;
    case 3: content.insert(0, 200000, '['); break;
    default: files.erase(name), right = ROMOU_MISSING;
  }
  expect_code(MemoryFiles(files).open(nullptr, &model), {right}, "opening damaged files");
  expect(model == nullptr, "a model of damaged files");
}

void open_wrongly(Random& random, const Network& network, const std::vector<std::string>& odd) {
  romou_model* model = nullptr;
  const romou_options unknown = {"nonesuch", nullptr};
  const romou_file unnamed = {nullptr, "x", 1}, lost = {"x", nullptr, 1};
  const auto wrong = [&] {
    switch (random.below(7)) {
      case 0: return romou_open(nullptr, nullptr, &model);
      case 1: return romou_open(network.folder.c_str(), nullptr, nullptr);
      case 2: return romou_open(network.folder.c_str(), &unknown, &model);
      case 3: return romou_open_memory(nullptr, 1, nullptr, &model);
      case 4: return romou_open_memory(&unnamed, 1, nullptr, &model);
      case 5: return romou_open_memory(&lost, 1, nullptr, &model);
      default: return MemoryFiles(network.files).open(&unknown, &model);
    }
  }();
  expect_code(wrong, {ROMOU_INVALID}, "a wrong romou_open");
  expect_code(romou_open(random.of(odd).c_str(), nullptr, &model), {ROMOU_MISSING}, "opening a folder with a file that is none");
  expect(model == nullptr, "a model that was not opened");
  romou_close(nullptr);
}

/// Read tokens of a decoder in random pieces, forget some, and call it wrongly. One call for each token and a text read in pieces have the same successor.
void use_decoder(Random& random, const Network& network) {
  constexpr int64_t kWords = 64, kRoom = 24;
  romou_model* model = nullptr;
  expect_code(random.once_in(2) ? MemoryFiles(network.files).open(nullptr, &model) : romou_open(network.folder.c_str(), nullptr, &model), {ROMOU_OK}, "opening a decoder");
  std::vector<int64_t> read;
  std::map<std::vector<int64_t>, int64_t> successors;
  for (int i = 0; i < kOperations; ++i) {
    const size_t what = random.below(8), count = random.below(random.once_in(4) ? 30 : 7);
    std::vector<int64_t> tokens(count);
    for (int64_t& token : tokens) token = static_cast<int64_t>(random.below(3));
    const Guarded buffer(count * sizeof(int64_t));
    int64_t next = -1;
    bool is_right = count > 0 && read.size() + count <= kRoom;
    if (what == 0) {
      is_right = count <= read.size();
      expect_code(romou_rewind(model, count), {is_right ? ROMOU_OK : ROMOU_INVALID}, "romou_rewind");
      if (is_right) read.resize(count);
      continue;
    }
    if (what == 1 && count > 0) {
      tokens[random.below(count)] = random.of(std::vector<int64_t>{-1, kWords, INT64_MAX, INT64_MIN});
      is_right = false;
    }
    if (count > 0) std::memcpy(buffer.data(), tokens.data(), buffer.size());
    expect_code(romou_decode(model, static_cast<const int64_t*>(buffer.data()), count, what == 2 ? nullptr : &next), {is_right && what != 2 ? ROMOU_OK : ROMOU_INVALID}, "romou_decode");
    if (!is_right || what == 2) continue;
    read.insert(read.end(), tokens.begin(), tokens.end());
    expect(next >= 0 && next < kWords && successors.emplace(read, next).first->second == next, "another successor of a text");
    if (what == 3) expect_code(romou_get(model, "logits", Guarded(kWords * sizeof(float)).data(), kWords * sizeof(float)), {ROMOU_OK}, "getting logits");
  }
  romou_close(model);
}

/// Calls of one thread on a model that others use as well. All set the same numbers, so whatever an output holds is known.
void share(romou_model* model, const Network& network, uint64_t seed) {
  Random random(seed);
  constexpr float kSum = -3;
  for (int i = 0; i < kOperations; ++i) {
    const Shape shape{network.has_shapes() ? 1 + static_cast<int64_t>(random.below(static_cast<size_t>(network.most_rows()))) : network.most_rows(), kColumns};
    const size_t index = random.below(2), bytes = bytes_of(shape);
    const char* output = network.outputs[index].c_str();
    romou_tensor tensor;
    void* place = nullptr;
    switch (random.below(6)) {
      case 0:
        for (const std::string& each : network.inputs) {
          expect_code(romou_reshape(model, each.c_str(), shape.data(), shape.size()), {ROMOU_OK}, "a shared romou_reshape");
          const Guarded buffer(Numbers(bytes / sizeof(float), each == network.inputs[0] ? kSum - 1 : 1));
          expect_code(romou_set(model, each.c_str(), buffer.data(), buffer.size()), {ROMOU_OK, ROMOU_INVALID}, "a shared romou_set");
        }
        [[fallthrough]];
      case 1: expect_code(romou_run(model), {ROMOU_OK, ROMOU_INVALID}, "a shared run"); break;
      case 2:
        expect_code((random.once_in(2) ? romou_input : romou_output)(model, index, &tensor), {ROMOU_OK}, "describing a shared tensor");
        expect(bytes_of(Shape(tensor.shape, tensor.shape + tensor.rank)) == tensor.bytes && std::strlen(tensor.name) > 0, "a torn description");
        break;
      case 3:
        // Only outputs: an input that is mapped has to be written whole before others may run.
        if (called(romou_map(model, output, &place)) == ROMOU_OK) {
          expect(*static_cast<float*>(place) == (index == 0 ? network.slope * kSum : kSum), "a wrong shared mapped output");
          expect_code(romou_unmap(model, output), {ROMOU_OK}, "a shared romou_unmap");
        }
        break;
      default: {
        const Guarded buffer(bytes);
        const romou_status status = romou_get(model, output, buffer.data(), buffer.size());
        expect_code(status, {ROMOU_OK, ROMOU_INVALID}, "a shared romou_get");
        for (const float number : buffer.numbers()) expect(number == (status != ROMOU_OK ? 0 : index == 0 ? network.slope * kSum : kSum), "a wrong shared output");
      }
    }
  }
}

void share_in_threads(Random& random, const std::vector<Network>& networks) {
  const Network& network = random.of(networks);
  romou_model* model = nullptr;
  expect_code(romou_open(network.folder.c_str(), nullptr, &model), {ROMOU_OK}, "romou_open");
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) threads.emplace_back(share, model, std::cref(network), random.seed());
  threads.emplace_back([&networks, seed = random.seed()] {
    Random own(seed);
    for (int i = 0; i < 4; ++i) Opened(own.of(networks), own.once_in(2)).use(own);
  });
  for (std::thread& thread : threads) thread.join();
  romou_close(model);
}

/// Several models at once, opened, used and closed in any order.
void use_several(Random& random, const std::vector<Network>& networks, const std::vector<Network>& decoders, const std::vector<std::string>& odd) {
  std::vector<std::unique_ptr<Opened>> opened;
  for (int i = 0; i < kOperations; ++i) {
    const size_t what = random.below(20);
    if (opened.empty() || (what == 0 && opened.size() < kMostOpen)) {
      opened.push_back(std::make_unique<Opened>(random.of(networks), random.once_in(2)));
    } else if (what == 1) {
      opened.erase(opened.begin() + static_cast<ptrdiff_t>(random.below(opened.size())));
    } else if (what == 2) {
      for (const auto& each : opened) each->use(random);
    } else if (what == 3) {
      open_wrongly(random, random.of(networks), odd);
    } else if (what == 4) {
      open_damaged(random, random.of(networks));
    } else if (what < 7) {
      open_forged(random, random.of(random.once_in(2) ? decoders : networks));
    } else {
      random.of(opened)->call(random);
    }
  }
}

Network files_in(const std::filesystem::path& folder) {
  Network network{folder, {}, 0, {}, {}, {}};
  for (const auto& each : std::filesystem::recursive_directory_iterator(folder)) {
    if (each.is_regular_file() && each.path().extension() != ".py") network.files[each.path().lexically_relative(folder)] = content_of(each.path());
  }
  return network;
}

Network network_in(const std::filesystem::path& folder) {
  Network network = files_in(folder);
  const std::string name = folder.filename();
  network.kind = name.substr(0, name.find('-'));
  network.slope = std::stof(name.substr(name.find('-') + 1));
  romou_model* model = nullptr;
  expect_code(romou_open(network.folder.c_str(), nullptr, &model), {ROMOU_OK}, "romou_open");
  romou_tensor tensor;
  for (size_t i = 0; romou_input(model, i, &tensor) == ROMOU_OK; ++i) network.inputs.emplace_back(tensor.name);
  for (size_t i = 0; romou_output(model, i, &tensor) == ROMOU_OK; ++i) network.outputs.emplace_back(tensor.name);
  romou_close(model);
  return network;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 5) return 2;
  const std::filesystem::path folder = arguments[1];
  const uint64_t seed = std::stoull(arguments[2]), first = std::stoull(arguments[3]);
  const time_t end = std::time(nullptr) + std::stol(arguments[4]);
  const uint64_t most = count > 5 ? std::stoull(arguments[5]) : UINT64_MAX;
  std::vector<Network> networks;
  const std::vector<Network> decoders = {files_in(folder / "decoder"), files_in(folder / "appending")};
  std::vector<std::string> odd;
  for (const auto& each : std::filesystem::directory_iterator(folder)) {
    if (const std::string name = each.path().filename(); name.find('-') != std::string::npos) networks.push_back(network_in(each.path()));
  }
  for (const auto& each : std::filesystem::directory_iterator(folder / "odd")) odd.push_back(each.path());
  std::sort(networks.begin(), networks.end(), [](const Network& a, const Network& b) { return a.folder < b.folder; });
  std::sort(odd.begin(), odd.end());
  if (networks.empty() || odd.empty()) return 2;
  uint64_t number = first;
  for (; number - first < most && std::time(nullptr) < end; ++number) {
    std::printf("case %llu\n", static_cast<unsigned long long>(number));
    std::fflush(stdout);
    alarm(kHangS);
    std::seed_seq seeds{seed, number};
    uint64_t mixed[2];
    seeds.generate(reinterpret_cast<uint32_t*>(mixed), reinterpret_cast<uint32_t*>(mixed + 2));
    Random random(mixed[0]);
    if (number % 8 == 5) {
      use_decoder(random, random.of(decoders));
    } else if (number % 4 == 3) {
      share_in_threads(random, networks);
    } else {
      use_several(random, networks, decoders, odd);
    }
  }
  std::printf("cases %llu calls", static_cast<unsigned long long>(number - first));
  for (size_t i = 0; i < std::size(kCodes); ++i) std::printf(" %s=%zu", kCodes[i], counts[i].load());
  std::printf("\n");
}
