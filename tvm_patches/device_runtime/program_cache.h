// SPDX-License-Identifier: Apache-2.0
//
// Compiled programs on disk, one file each: `<key>.program`, with the SHA-256 of everything that the compiler's answer depends on as key.
//
// Writing: to a temporary file, then renamed, so a reader sees a whole entry or none.
// Reading: an entry carries its key and a SHA-256 of its content. An entry that does not match is removed, noted in one line, and compiled again.
// Loading: a driver may crash on a binary that it wrote, so there is a mark `<key>.try` beside the entry while the driver loads it. A mark without a lock
// was left by a crash. From then on that program is compiled from source, and in this process all programs are. If the next process that loads binaries
// of this device crashes as well, none of them is loaded any more.
// Compiling: a driver's compiler may crash, too, so there is such a mark while it works. A mark without a lock may also be left by a killed process. The
// program is compiled once more, in a separate process if possible, and refused if that process ends as well.
// Files: only regular files are read, opened without waiting, because the folder may contain anything.
#ifndef ROMOU_DEVICE_RUNTIME_PROGRAM_CACHE_H_
#define ROMOU_DEVICE_RUNTIME_PROGRAM_CACHE_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace romou {

/// Return $ROMOU_CACHE_DIR/programs, or a folder below $XDG_CACHE_HOME or ~/.cache. Empty if programs are not to be kept, or there is no such folder.
std::string default_program_folder();
/// Return $ROMOU_PROGRAM_CACHE_MB in bytes. 0 if programs are not kept.
uint64_t program_cache_limit();

/// One folder of programs. Thread-safe, and safe against other processes with the same folder. Never raises: after a failure the program is compiled,
/// and there is a note.
class ProgramCache {
 public:
  /// The entry of a program: its binary, the log of a driver that refuses its source, or the reason not to load its binary.
  enum class Kind : char { kBinary = 'b', kRefused = 'r', kSourceOnly = 's' };
  struct Entry {
    Kind kind;
    std::string content;
  };

  /// Make the folder if it is missing, and read marks of crashes. The cache is not usable if `folder` is empty, cannot be made, or may be written by
  /// others, because entries are code. `device` is a key of the device and its driver. `is_asked_only`: leave marks of crashes to the process that
  /// loads and compiles.
  ProgramCache(const std::string& folder, std::string device, bool is_asked_only = false);
  bool is_usable() const { return !folder_.empty(); }
  /// Return false if the driver crashed on binaries, the last time or twice in a row.
  bool loads_binaries() const { return loads_binaries_; }
  /// Called when binaries were loaded without a crash.
  void trust();

  /// Return the complete, unchanged entry of a key, or none. `what` names the program in notes.
  std::optional<Entry> find(const std::string& key, const std::string& what);
  /// Write an entry over an older one. Return false if that fails.
  bool store(const std::string& key, Kind kind, const std::string& content);
  void remove(const std::string& key);
  /// Remove the least recently used entries until the others take `limit` bytes, and the files of killed writers.
  void trim(uint64_t limit);

  /// Return whether there is a file of this key.
  bool has(const std::string& key) const;
  /// Return whether a process ended while the driver compiled this program.
  bool is_doubtful(const std::string& key) const { return doubtful_.count(key) != 0; }
  /// Remove the mark of a process that ended.
  void trust_again(const std::string& key);

  enum class Work { kLoad, kCompile };
  /// A mark that exists while a driver loads a binary or compiles.
  class Attempt {
   public:
    Attempt(ProgramCache& cache, const std::string& key, Work work);
    Attempt(const Attempt&) = delete;
    Attempt& operator=(const Attempt&) = delete;
    ~Attempt();
    /// Loading: false if no mark can be written. Compiling: false if two processes ended while they compiled it. A refusal is stored then.
    bool may_go_on() const { return may_go_on_; }

   private:
    void mark_load(ProgramCache& cache);
    void mark_compile(ProgramCache& cache, const std::string& key);

    std::string path_;
    int file_ = -1;
    bool may_go_on_ = false;
  };

  void note(const std::string& line);
  /// Return the notes so far, each at most once, and clear them.
  std::vector<std::string> take_notes();
  std::string path_of(const std::string& key) const { return folder_ + "/" + key + ".program"; }

 private:
  void look_for_crashes(bool is_asked_only);

  std::string folder_, device_;
  int crashes_ = 0;  ///< in a row
  bool loads_binaries_ = true;
  std::set<std::string> doubtful_;
  std::mutex mutex_;  ///< guards the notes
  std::vector<std::string> notes_;
};

}  // namespace romou

#endif  // ROMOU_DEVICE_RUNTIME_PROGRAM_CACHE_H_
