// SPDX-License-Identifier: Apache-2.0
//
// The tracker's client.
#ifndef ROMOU_PHONE_TRACKER_H_
#define ROMOU_PHONE_TRACKER_H_

#include <tvm/ffi/extra/json.h>

#include <cstdint>
#include <string>

#include "options.h"
#include "sockets.h"

namespace romou::phone {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

/// Reports this server to a tracker under its key and a random match key, which a client has to name instead of the key.
class Tracker {
 public:
  Tracker(const Options& options, int port) : options_(options), port_(port) {}

  bool is_wanted() const { return !options_.tracker_host.empty(); }
  bool is_connected() const { return static_cast<bool>(connection_); }
  const std::string& match_key() const { return match_key_; }
  /// Connect if that is due, and offer the server under a new match key.
  void offer();
  /// Check between sessions that the tracker is still there, and that no client took the key and never came.
  void ping();

 private:
  template <typename F>
  void attempt(F work);
  void connect_now();
  void put();
  void must_succeed(const json::Array& message);
  ffi::Any ask(const json::Array& message);


  const Options& options_;
  int port_;
  Handle connection_;
  std::string match_key_;
  int unused_pings_ = 0;
  int64_t retry_at_ = 0;
  bool is_missed_ = false;
};

}  // namespace romou::phone

#endif  // ROMOU_PHONE_TRACKER_H_
