// SPDX-License-Identifier: Apache-2.0
//
// The files of an exported model, in a folder or in memory.
#ifndef ROMOU_APP_RUNTIME_FILES_H_
#define ROMOU_APP_RUNTIME_FILES_H_

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>

#include "failure.h"

namespace romou::app {

/// Adler-32 (RFC 1950), as zlib.adler32 in Python.
inline uint32_t adler32(std::string_view bytes) {
  constexpr uint32_t kModulus = 65521;
  constexpr size_t kLongest = 5552;  // sums stay below 2^32
  uint32_t low = 1, high = 0;
  while (!bytes.empty()) {
    for (const unsigned char byte : bytes.substr(0, kLongest)) high += low += byte;
    low %= kModulus;
    high %= kModulus;
    bytes.remove_prefix(std::min(kLongest, bytes.size()));
  }
  return high << 16 | low;
}

class Files {
 public:
  virtual ~Files() = default;
  /// Return a file's content. Raises ROMOU_MISSING.
  virtual std::string read(const std::string& name) const = 0;
  /// Return a path by which the library `name`, whose content is `bytes`, is opened now.
  virtual std::string path_of_library(const std::string& name, std::string_view bytes) = 0;
  /// Return the folder for a variant's programs, or "" if there is none.
  virtual std::string programs(const std::string& variant) const = 0;
};

class Folder : public Files {
 public:
  explicit Folder(const std::string& path) : path_(path) {}

  std::string read(const std::string& name) const final {
    const std::string path = path_ + "/" + name;
    const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    struct stat about {};
    if (file < 0 || fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
      const std::string reason = file < 0 ? std::strerror(errno) : "it is no regular file";
      if (file >= 0) close(file);
      throw Failure(ROMOU_MISSING, "cannot read " + path + ": " + reason);
    }
    std::string bytes(static_cast<size_t>(about.st_size), '\0');
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t count = ::read(file, bytes.data() + done, bytes.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      done += static_cast<size_t>(count);
    }
    close(file);
    bytes.resize(done);
    return bytes;
  }

  std::string path_of_library(const std::string& name, std::string_view) final { return path_ + "/" + name; }
  std::string programs(const std::string& variant) const final { return path_ + "/" + variant + "/programs"; }

 private:
  std::string path_;
};

/// Files in memory. A library is opened through a file without a name (memfd_create), which lives as long as this object.
class InMemory : public Files {
 public:
  InMemory(const romou_file* files, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (files[i].name == nullptr || (files[i].data == nullptr && files[i].bytes != 0)) throw Failure(ROMOU_INVALID, "file " + std::to_string(i) + " has no name or no data");
      files_[files[i].name] = std::string_view(static_cast<const char*>(files[i].data), files[i].bytes);
    }
  }
  ~InMemory() override {
    if (library_ >= 0) close(library_);
  }

  std::string read(const std::string& name) const final {
    const auto found = files_.find(name);
    if (found == files_.end()) throw Failure(ROMOU_MISSING, "there is no file " + name + " among those in memory");
    return std::string(found->second);
  }

  std::string path_of_library(const std::string& name, std::string_view bytes) final {
    constexpr unsigned kCloseOnExec = 1;
    if (library_ >= 0) close(library_);
    library_ = static_cast<int>(syscall(SYS_memfd_create, "romou", kCloseOnExec));
    for (size_t done = 0; library_ >= 0 && done < bytes.size();) {
      const ssize_t count = write(library_, bytes.data() + done, bytes.size() - done);
      if (count < 0 && errno != EINTR) throw Failure(ROMOU_FAILED, name + " cannot be copied: " + std::strerror(errno));
      done += count < 0 ? 0 : static_cast<size_t>(count);
    }
    if (library_ < 0) throw Failure(ROMOU_FAILED, name + " cannot be opened from memory here (" + std::strerror(errno) + "); write the files into a folder");
    return "/proc/self/fd/" + std::to_string(library_);
  }

  std::string programs(const std::string&) const final { return {}; }

 private:
  std::map<std::string, std::string_view> files_;
  int library_ = -1;
};

}  // namespace romou::app

#endif  // ROMOU_APP_RUNTIME_FILES_H_
