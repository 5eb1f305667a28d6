// SPDX-License-Identifier: Apache-2.0
//
// Compiled programs on disk, one file each: `<key>.program`, where the key is the SHA-256 of everything that the compiler's answer depends on.
//
// Writing: to a temporary file, then renamed, so a reader sees a whole entry or none.
// Reading: an entry carries its key and a SHA-256 of its content. An entry that does not match is removed, noted in one line, and compiled again.
// Loading: a driver may crash on a binary that it wrote itself, so a mark `<key>.try` is kept beside the entry while the driver loads it. A mark that
// nobody holds a lock on was left by a crash: that program is compiled from source from then on, and in this process all are. Where the next
// process that loads binaries of this device crashes as well, none of them is loaded any more.
// Compiling: a driver's compiler may crash, too, so there is such a mark while it works. One that was left may come from a process that somebody
// killed: the program is compiled once more, in a separate process if there can be one, and refused if that one ends as well.
// Files: only regular ones are read, opened without waiting: the folder may contain anything.
#ifndef ROMOU_DEVICE_RUNTIME_PROGRAM_CACHE_H_
#define ROMOU_DEVICE_RUNTIME_PROGRAM_CACHE_H_

#include <cstdint>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace romou {

/// $ROMOU_CACHE_DIR/programs, else below $XDG_CACHE_HOME or ~/.cache. Empty if programs are not to be kept, or there is no such folder.
std::string default_program_folder();
/// $ROMOU_PROGRAM_CACHE_MB in bytes; 0: programs are not kept.
uint64_t program_cache_limit();

/// One folder of programs. Thread-safe, and safe against other processes with the same folder. Never raises: a failure costs a compilation
/// and leaves a note.
class ProgramCache {
 public:
  /// The entry of a program: its binary, the log of a driver that refuses its source, or that its binary is not to be loaded (and why).
  enum class Kind : char { kBinary = 'b', kRefused = 'r', kSourceOnly = 's' };
  struct Entry {
    Kind kind;
    std::string content;
  };

  /// Make the folder if it is missing, and look for marks of crashes. Not usable if `folder` is empty, cannot be made, or may be written by
  /// others: entries are code. `device` is a key that names the device and its driver.
  /// `is_asked_only`: marks of crashes are left to the process that loads and compiles.
  ProgramCache(const std::string& folder, std::string device, bool is_asked_only = false);
  bool is_usable() const { return !folder_.empty(); }
  /// False if the driver crashed on binaries: the last time, or twice in a row.
  bool loads_binaries() const { return loads_binaries_; }
  /// Binaries were loaded without a crash.
  void trust();

  /// The entry of a key, whole and unchanged since it was stored; none otherwise. `what` names the program in notes.
  std::optional<Entry> find(const std::string& key, const std::string& what);
  /// Write an entry over an older one; false if that fails.
  bool store(const std::string& key, Kind kind, const std::string& content);
  void remove(const std::string& key);
  /// Remove the entries that were used longest ago until the rest has `limit` bytes, and the remains of killed writers.
  void trim(uint64_t limit);

  /// Whether there is a file of this key.
  bool has(const std::string& key) const;
  /// Whether a process ended while the driver compiled this program.
  bool is_doubtful(const std::string& key) const { return doubtful_.count(key) != 0; }

  enum class Work { kLoad, kCompile };
  /// Stands while a driver loads a binary, or compiles.
  class Attempt {
   public:
    Attempt(ProgramCache& cache, const std::string& key, Work work);
    Attempt(const Attempt&) = delete;
    Attempt& operator=(const Attempt&) = delete;
    ~Attempt();
    /// Loading: false if no mark can be written. Compiling: false if two processes ended over it, which is then stored as a refusal.
    bool may_go_on() const { return may_go_on_; }

   private:
    void mark_load(ProgramCache& cache);
    void mark_compile(ProgramCache& cache, const std::string& key);

    std::string path_;
    int file_ = -1;
    bool may_go_on_ = false;
  };

  void note(const std::string& line);
  /// The notes so far, each at most once; they are forgotten here.
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
