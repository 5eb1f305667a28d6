// SPDX-License-Identifier: Apache-2.0
#include "program_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "sha256.h"

namespace romou {
namespace {

constexpr const char kMagic[] = "ROMOUPC1";
constexpr size_t kDigits = 64;
// magic, key, kind, SHA-256 of the three and the content
constexpr size_t kHeader = sizeof(kMagic) - 1 + kDigits + 1 + kDigits;
constexpr uint64_t kDefaultLimitMb = 256;
constexpr int kCrashesInARow = 2;
constexpr time_t kLeftOverAfterS = 3600;
constexpr const char *kEntry = ".program", *kMark = ".try", *kPartial = "partial-";
// Field of a compilation's mark, after the device and before the number of processes that began the compilation.
constexpr char kCompiled = 'c';
constexpr const char* kCrashed = "the driver's compiler ended the processes that compiled this kernel";

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Make a folder and its parents. Return false if one is missing and cannot be made.
bool make_folders(const std::string& path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) return false;
    if (slash == std::string::npos) return true;
  }
}

// Opening a pipe could block, and opening a device may act on it.
constexpr int kOpen = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;

/// Return the content of a regular file, and an empty text for any other.
std::string content_of(int file) {
  struct stat found {};
  std::string text;
  if (fstat(file, &found) == 0 && S_ISREG(found.st_mode)) text.resize(static_cast<size_t>(found.st_size));
  size_t at = 0;
  for (ssize_t got = 1; at < text.size() && got > 0; at += static_cast<size_t>(std::max<ssize_t>(got, 0))) {
    got = pread(file, &text[at], text.size() - at, static_cast<off_t>(at));
  }
  text.resize(at);
  return text;
}

std::optional<std::string> read_all(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | kOpen);
  if (file < 0) return std::nullopt;
  std::string text = content_of(file);
  close(file);
  return text;
}

bool write_all(int file, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t put = write(file, text.data() + at, text.size() - at);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    at += static_cast<size_t>(put);
  }
  return true;
}

bool ends_with(const std::string& text, const char* end) {
  return text.size() >= std::strlen(end) && text.compare(text.size() - std::strlen(end), std::string::npos, end) == 0;
}

std::string header(const std::string& key, ProgramCache::Kind kind) { return kMagic + key + static_cast<char>(kind); }

}  // namespace

uint64_t program_cache_limit() {
  const std::string text = variable("ROMOU_PROGRAM_CACHE_MB");
  char* end = nullptr;
  const unsigned long long megabytes = std::strtoull(text.c_str(), &end, 10);
  return (text.empty() || *end != '\0' ? kDefaultLimitMb : megabytes) << 20;
}

std::string default_program_folder() {
  if (program_cache_limit() == 0) return {};
  const std::string home = variable("HOME");
  std::string root = variable("ROMOU_CACHE_DIR");
  if (root.empty() && !variable("XDG_CACHE_HOME").empty()) root = variable("XDG_CACHE_HOME") + "/romou";
  if (root.empty()) root = "~/.cache/romou";
  if (root[0] == '~') {
    // A phone's shell has no home folder.
    if (home.empty() || home == "/") return {};
    root.replace(0, 1, home);
  }
  return root + "/programs";
}

ProgramCache::ProgramCache(const std::string& folder, std::string device, bool is_asked_only) : device_(std::move(device)) {
  if (folder.empty()) return;
  struct stat found {};
  if (!make_folders(folder) || stat(folder.c_str(), &found) != 0 || !S_ISDIR(found.st_mode)) {
    note("compiled programs are not kept: " + folder + " cannot be made: " + std::strerror(errno));
  } else if (found.st_uid != geteuid() || (found.st_mode & 022) != 0) {
    note("compiled programs are not kept: others may write to " + folder + "; chmod go-w it, or set ROMOU_CACHE_DIR");
  } else {
    folder_ = folder;
    look_for_crashes(is_asked_only);
  }
}

void ProgramCache::look_for_crashes(bool is_asked_only) {
  if (const auto entry = find(device_, "the device"); entry.has_value()) crashes_ = std::atoi(entry->content.c_str());
  std::vector<std::string> crashed;
  DIR* folder = opendir(folder_.c_str());
  for (const dirent* each = nullptr; folder != nullptr && (each = readdir(folder)) != nullptr;) {
    const std::string name = each->d_name, path = folder_ + "/" + name;
    if (!ends_with(name, kMark)) continue;
    const int file = open(path.c_str(), O_RDWR | kOpen);
    // A live process holds a lock on its mark.
    const std::string text = file >= 0 && flock(file, LOCK_EX | LOCK_NB) == 0 ? content_of(file) : "";
    const std::string key = name.substr(0, name.size() - std::strlen(kMark));
    if (text.rfind(device_ + kCompiled, 0) == 0) {
      doubtful_.insert(key);
    } else if (text == device_ && !is_asked_only) {
      if (!store(key, Kind::kSourceOnly, "a process ended while the driver loaded its binary")) remove(key);
      crashed.push_back(key);
      unlink(path.c_str());
    }
    if (file >= 0) close(file);
  }
  if (folder != nullptr) closedir(folder);
  if (!crashed.empty()) {
    crashes_ += 1;
    store(device_, Kind::kSourceOnly, std::to_string(crashes_));
    const std::string what = crashes_ < kCrashesInARow ? "that program is" : "again: all programs of this device are";
    note("a process ended while the driver loaded a kept program, " + what + " compiled from source from now on (to try again, remove " +
         path_of(crashes_ < kCrashesInARow ? crashed[0] : device_) + ")");
  }
  loads_binaries_ = crashed.empty() && crashes_ < kCrashesInARow;
}

void ProgramCache::trust() {
  if (crashes_ != 0) remove(device_);
}

std::optional<ProgramCache::Entry> ProgramCache::find(const std::string& key, const std::string& what) {
  const std::string path = path_of(key);
  std::optional<std::string> text = read_all(path);
  if (!text.has_value()) return std::nullopt;
  const size_t start = sizeof(kMagic) - 1 + kDigits;
  std::string problem;
  if (text->size() < kHeader || text->compare(0, sizeof(kMagic) - 1, kMagic) != 0) {
    problem = "is no whole entry";
  } else if (text->compare(sizeof(kMagic) - 1, kDigits, key) != 0) {
    problem = "belongs to another program";
  } else if (text->compare(start + 1, kDigits, sha256_hex(text->substr(0, start + 1) + text->substr(kHeader))) != 0) {
    problem = "is damaged";
  }
  if (!problem.empty()) {
    note("the kept program of " + what + " " + problem + " and is compiled again: " + path);
    remove(key);
    return std::nullopt;
  }
  // Update the time of use, because the least recently used entries are removed first.
  utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
  return Entry{static_cast<Kind>((*text)[start]), text->substr(kHeader)};
}

bool ProgramCache::store(const std::string& key, Kind kind, const std::string& content) {
  static std::atomic<uint64_t> count{0};
  const std::string partial = folder_ + "/" + kPartial + std::to_string(getpid()) + "-" + std::to_string(count++);
  unlink(partial.c_str());  // left by a killed process with the same number
  const int file = open(partial.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  const std::string head = header(key, kind);
  bool is_stored = file >= 0 && write_all(file, head + sha256_hex(head + content) + content);
  const int reason = errno;
  if (file >= 0) is_stored = close(file) == 0 && is_stored;
  is_stored = is_stored && rename(partial.c_str(), path_of(key).c_str()) == 0;
  if (is_stored) return true;
  if (file >= 0) unlink(partial.c_str());
  note("compiled programs cannot be written to " + folder_ + ": " + std::strerror(reason));
  return false;
}

bool ProgramCache::has(const std::string& key) const { return is_usable() && access(path_of(key).c_str(), F_OK) == 0; }

void ProgramCache::remove(const std::string& key) { unlink(path_of(key).c_str()); }

void ProgramCache::trust_again(const std::string& key) {
  if (doubtful_.erase(key) != 0) unlink((folder_ + "/" + key + kMark).c_str());
}

void ProgramCache::trim(uint64_t limit) {
  DIR* folder = opendir(folder_.c_str());
  if (folder == nullptr) return;
  struct File {
    timespec used;
    uint64_t bytes;
    std::string path;
  };
  std::vector<File> entries;
  uint64_t total = 0;
  const time_t now = time(nullptr);
  while (const dirent* each = readdir(folder)) {
    const std::string name = each->d_name, path = folder_ + "/" + name;
    struct stat found {};
    if (lstat(path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) continue;
    if (ends_with(name, kEntry)) {
      entries.push_back({found.st_mtim, static_cast<uint64_t>(found.st_size), path});
      total += entries.back().bytes;
    } else if (name.rfind(kPartial, 0) == 0 && now - found.st_mtim.tv_sec > kLeftOverAfterS) {
      unlink(path.c_str());
    }
  }
  closedir(folder);
  std::sort(entries.begin(), entries.end(), [](const File& a, const File& b) {
    return std::pair(a.used.tv_sec, a.used.tv_nsec) < std::pair(b.used.tv_sec, b.used.tv_nsec);
  });
  for (const File& entry : entries) {
    if (total <= limit) return;
    if (unlink(entry.path.c_str()) == 0) total -= entry.bytes;
  }
}

ProgramCache::Attempt::Attempt(ProgramCache& cache, const std::string& key, Work work) : path_(cache.folder_ + "/" + key + kMark) {
  file_ = open(path_.c_str(), O_RDWR | O_CREAT | kOpen, 0600);
  if (work == Work::kLoad) {
    mark_load(cache);
  } else {
    mark_compile(cache, key);
  }
}

void ProgramCache::Attempt::mark_load(ProgramCache& cache) {
  if (file_ < 0) {
    cache.note("kept programs are compiled again: no mark can be written beside them in " + cache.folder_ + ": " + std::strerror(errno));
    return;
  }
  struct stat found {};
  const bool is_held = flock(file_, LOCK_EX | LOCK_NB) == 0;
  if (is_held && fstat(file_, &found) == 0 && S_ISREG(found.st_mode) && found.st_nlink != 0 && found.st_size == 0) {
    may_go_on_ = write_all(file_, cache.device_);
  } else {
    // Another process is loading this program or has just done so, and its mark is enough for both. Or that process has just crashed, and the next
    // process finds its mark.
    close(std::exchange(file_, -1));
    may_go_on_ = found.st_size == 0 || found.st_nlink == 0;
  }
}

void ProgramCache::Attempt::mark_compile(ProgramCache& cache, const std::string& key) {
  may_go_on_ = true;
  struct stat found {};
  // Another process may be compiling the same program. This process then leaves no mark if it crashes.
  if (file_ < 0 || flock(file_, LOCK_EX | LOCK_NB) != 0 || fstat(file_, &found) != 0 || !S_ISREG(found.st_mode) || found.st_nlink == 0) {
    if (file_ >= 0) close(std::exchange(file_, -1));
    return;
  }
  const std::string text = content_of(file_), head = cache.device_ + kCompiled;
  const int begun = text.rfind(head, 0) == 0 ? std::atoi(text.c_str() + head.size()) : 0;
  if (begun >= kCrashesInARow) {
    may_go_on_ = !cache.store(key, Kind::kRefused, kCrashed);
  } else if (ftruncate(file_, 0) != 0 || !write_all(file_, head + std::to_string(begun + 1))) {
    unlink(path_.c_str());
    close(std::exchange(file_, -1));
  }
}

ProgramCache::Attempt::~Attempt() {
  if (file_ < 0) return;
  unlink(path_.c_str());
  close(file_);
}

void ProgramCache::note(const std::string& line) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (std::find(notes_.begin(), notes_.end(), line) == notes_.end()) notes_.push_back(line);
}

std::vector<std::string> ProgramCache::take_notes() {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(notes_, {});
}

}  // namespace romou
