// SPDX-License-Identifier: Apache-2.0
//
// The server's command line.
#ifndef ROMOU_PHONE_OPTIONS_H_
#define ROMOU_PHONE_OPTIONS_H_

#include <string>

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

/// Read the command line. Wrong options end the program with a message, as --help does.
Options parse(int argc, char** argv);

}  // namespace romou::phone

#endif  // ROMOU_PHONE_OPTIONS_H_
