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
#include <utility>

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

/// An open file, closed with this object.
class OpenFile {
 public:
  explicit OpenFile(int descriptor) : descriptor_(descriptor) {}
  OpenFile(OpenFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }

  operator int() const { return descriptor_; }

  /// Return a path for dlopen. The linker of glibc takes two libraries of one path for the same, and a descriptor's number is used again. So the path
  /// spells the file's identity, in steps that lead nowhere: "/proc/self/fd/././//.//7".
  std::string path() const {
    struct stat about {};
    fstat(descriptor_, &about);
    std::string path = "/proc/self/fd/";
    for (const auto number : {static_cast<uint64_t>(about.st_dev), static_cast<uint64_t>(about.st_ino)}) {
      for (int bit = 0; bit < 64; ++bit) path += (number >> bit & 1) != 0 ? "./" : "/";
    }
    return path + std::to_string(descriptor_);
  }

 private:
  int descriptor_;
};

/// A file's content, and the open file that it was read from, if there is one.
struct Content {
  std::string bytes;
  OpenFile file{-1};
};

class Files {
 public:
  virtual ~Files() = default;
  /// Return a file's content. Raises ROMOU_MISSING, or ROMOU_DAMAGED if it has more than `limit` bytes.
  virtual Content read(const std::string& name, size_t limit) const = 0;
  /// Return the folder for a variant's programs, or "" if there is none.
  virtual std::string programs(const std::string& variant) const = 0;

 protected:
  static void check_size(const std::string& name, size_t bytes, size_t limit) {
    if (bytes > limit) throw Failure(ROMOU_DAMAGED, name + " has " + std::to_string(bytes) + " bytes, at most " + std::to_string(limit) + " are expected; export the model again");
  }
};

class Folder : public Files {
 public:
  explicit Folder(const std::string& path) : path_(path) {}

  Content read(const std::string& name, size_t limit) const final {
    const std::string path = path_ + "/" + name;
    OpenFile file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    struct stat about {};
    if (file < 0 || fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
      throw Failure(ROMOU_MISSING, "cannot read " + path + ": " + (file < 0 ? std::strerror(errno) : "it is no regular file"));
    }
    check_size(name, static_cast<size_t>(about.st_size), limit);
    std::string bytes(static_cast<size_t>(about.st_size), '\0');
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t count = ::read(file, bytes.data() + done, bytes.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) break;
      done += static_cast<size_t>(count);
    }
    bytes.resize(done);
    return {std::move(bytes), std::move(file)};
  }

  std::string programs(const std::string& variant) const final { return path_ + "/" + variant + "/programs"; }

 private:
  std::string path_;
};

class InMemory : public Files {
 public:
  InMemory(const romou_file* files, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (files[i].name == nullptr || (files[i].data == nullptr && files[i].bytes != 0)) throw Failure(ROMOU_INVALID, "file " + std::to_string(i) + " has no name or no data");
      files_[files[i].name] = std::string_view(static_cast<const char*>(files[i].data), files[i].bytes);
    }
  }

  Content read(const std::string& name, size_t limit) const final {
    const auto found = files_.find(name);
    if (found == files_.end()) throw Failure(ROMOU_MISSING, "there is no file " + name + " among those in memory");
    check_size(name, found->second.size(), limit);
    return {std::string(found->second)};
  }

  std::string programs(const std::string&) const final { return {}; }

 private:
  std::map<std::string, std::string_view> files_;
};

/// Return the open file of a library: the one that was read, or a file without a name (memfd_create).
inline OpenFile open_library(const std::string& name, Content content) {
  if (content.file >= 0) return std::move(content.file);
  constexpr unsigned kCloseOnExec = 1;
  OpenFile file(static_cast<int>(syscall(SYS_memfd_create, "romou", kCloseOnExec)));
  if (file < 0) throw Failure(ROMOU_FAILED, name + " cannot be opened from memory here (" + std::strerror(errno) + "); write the files into a folder");
  for (size_t done = 0; done < content.bytes.size();) {
    const ssize_t count = write(file, content.bytes.data() + done, content.bytes.size() - done);
    if (count < 0 && errno != EINTR) throw Failure(ROMOU_FAILED, name + " cannot be copied: " + std::strerror(errno));
    done += count < 0 ? 0 : static_cast<size_t>(count);
  }
  return file;
}

}  // namespace romou::app

#endif  // ROMOU_APP_RUNTIME_FILES_H_
