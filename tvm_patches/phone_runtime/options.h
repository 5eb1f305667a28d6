// SPDX-License-Identifier: Apache-2.0
//
// The server's command line.
#ifndef ROMOU_PHONE_OPTIONS_H_
#define ROMOU_PHONE_OPTIONS_H_

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "process.h"

namespace romou::phone {

struct Options {
  std::string host = "127.0.0.1";
  int port = 9090;
  std::string key;
  std::string tracker_host;
  int tracker_port = 0;
  double timeout_s = 300;
  std::string work_dir;
  bool is_query = false;  ///< print the OpenCL devices and end
};

inline constexpr const char* kUsage =
    "usage: romou_rpc_server --key-file FILE [--host 127.0.0.1] [--port 9090] [--tracker HOST:PORT] [--timeout SECONDS] [--work-dir FOLDER]\n"
    "Serves this device's OpenCL and Vulkan to a TVM or Romou host. It runs whatever a client with the right key sends, and nothing is encrypted.\n"
    "  --key-file  file with what a client has to name; without it: the variable ROMOU_RPC_KEY\n"
    "  --key       the same in the command line, where every user of this machine can read it\n"
    "  --host      address to listen on; anything but loopback lets the network in\n"
    "  --port      port to listen on; 0: any free one\n"
    "  --tracker   report to this TVM tracker\n"
    "  --timeout   end a session in which nothing was sent or received for so long: a kernel that hangs, a host that is gone; 0: never (300)\n"
    "  --work-dir  where uploaded modules are kept during a session\n"
    "  --devices   print this device's libraries and devices of OpenCL and Vulkan as JSON, and serve nobody\n";

inline int whole_number(const std::string& name, const std::string& text, int low, int high) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < low || value > high) {
    refuse(name + " " + text + ": must be a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return static_cast<int>(value);
}

inline std::string default_work_dir() {
  const char* wished = std::getenv("TMPDIR");
  for (const char* folder : {wished, "/tmp", "/data/local/tmp"}) {
    if (folder != nullptr && access(folder, W_OK | X_OK) == 0) return folder;
  }
  return ".";
}
/// Read the command line. Wrong options end the program with a message, as --help does.
inline Options parse(int argc, char** argv) {
  Options options;
  if (const char* key = std::getenv("ROMOU_RPC_KEY")) options.key = key;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "-h" || name == "--help") {
      std::printf("%s", kUsage);
      std::exit(0);
    }
    if (name == "--devices") {
      options.is_query = true;
      continue;
    }
    static const std::set<std::string> known = {"--host", "--port", "--key", "--key-file", "--tracker", "--timeout", "--work-dir"};
    if (known.count(name) == 0) refuse("unknown option " + name + "\n" + kUsage);
    if (i + 1 == argc) refuse(name + " needs a value");
    const std::string value = argv[++i];
    if (name == "--host") options.host = value;
    if (name == "--port") options.port = whole_number(name, value, 0, 65535);
    if (name == "--key") options.key = value;
    if (name == "--key-file" && !(std::ifstream(value) >> options.key)) refuse("--key-file " + value + ": holds no key");
    if (name == "--work-dir") options.work_dir = value;
    if (name == "--timeout") {
      char* end = nullptr;
      options.timeout_s = std::strtod(value.c_str(), &end);
      if (value.empty() || *end != '\0' || !(options.timeout_s >= 0)) refuse("--timeout " + value + ": must be seconds, 0 or more");
    }
    if (name == "--tracker") {
      const size_t colon = value.rfind(':');
      if (colon == std::string::npos || colon == 0) refuse("--tracker " + value + ": write HOST:PORT");
      options.tracker_host = value.substr(0, colon);
      options.tracker_port = whole_number("--tracker", value.substr(colon + 1), 1, 65535);
    }
  }
  if (options.is_query) return options;
  if (options.key.empty()) refuse("the key is missing: choose a secret word, which clients have to name\n" + std::string(kUsage));
  if (options.key.find_first_of(" \t\n/:") != std::string::npos) refuse("the key: no spaces, slashes and colons");
  if (options.work_dir.empty()) options.work_dir = default_work_dir();
  options.work_dir = std::filesystem::absolute(options.work_dir).string();
  return options;
}

}  // namespace romou::phone

#endif  // ROMOU_PHONE_OPTIONS_H_
