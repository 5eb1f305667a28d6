// SPDX-License-Identifier: Apache-2.0
//
// A client of the tracker with the protocol of tvm/rpc/tracker.py.
#ifndef ROMOU_PHONE_TRACKER_H_
#define ROMOU_PHONE_TRACKER_H_

#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/string.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "options.h"
#include "process.h"
#include "sockets.h"

namespace romou::phone {

namespace ffi = tvm::ffi;
namespace json = tvm::ffi::json;

// tvm/rpc/base.py.
inline constexpr int32_t kTrackerMagic = 0x2f271;
inline constexpr int kSuccess = 0, kPut = 3, kUpdateInfo = 5, kGetPendingMatchKeys = 7;

inline constexpr int kTrackerRetryMs = 3000;
inline constexpr int kUnusedKeyPings = 3;  // pings after which the match key of a client that never connected is replaced

/// Reports this server to a tracker under its key and a random match key, which a client has to name instead of the key.
class Tracker {
 public:
  Tracker(const Options& options, int port) : options_(options), port_(port) {}

  bool is_wanted() const { return !options_.tracker_host.empty(); }
  bool is_connected() const { return static_cast<bool>(connection_); }
  const std::string& match_key() const { return match_key_; }

  /// Connect if that is due, and offer the server under a new match key.
  void offer() {
    if (!is_wanted()) return;
    attempt([&] {
      if (!connection_) connect_now();
      if (connection_) put();
    });
  }

  /// Check between sessions that the tracker still answers, and replace a key whose client never connected.
  void ping() {
    if (!is_wanted()) return;
    if (!connection_) return offer();
    attempt([&] {
      const json::Array pending = ask(json::Array{kGetPendingMatchKeys}).cast<json::Array>();
      const bool is_pending = std::any_of(pending.begin(), pending.end(), [&](const ffi::Any& k) { return std::string(k.cast<ffi::String>()) == match_key_; });
      unused_pings_ = is_pending ? 0 : unused_pings_ + 1;
      if (unused_pings_ > kUnusedKeyPings) put();
    });
  }

 private:
  template <typename F>
  void attempt(F work) {
    try {
      work();
    } catch (const std::exception& error) {
      if (connection_) say("lost the tracker (%s); trying again", error.what());
      connection_.reset();
      retry_at_ = now_ms() + kTrackerRetryMs;
    }
  }

  void connect_now() {
    if (now_ms() < retry_at_) return;
    retry_at_ = now_ms() + kTrackerRetryMs;
    Handle fresh;
    const std::string reason = try_addresses(options_.tracker_host, options_.tracker_port, 0, [&](const addrinfo& at) {
      fresh.reset(socket(at.ai_family, at.ai_socktype | SOCK_CLOEXEC, at.ai_protocol));
      set_patience(fresh.get(), kHandshakeMs);
      return connect(fresh.get(), at.ai_addr, at.ai_addrlen) == 0;
    });
    if (!reason.empty()) {
      if (!is_missed_) say("no tracker at %s:%d (%s); trying again", options_.tracker_host.c_str(), options_.tracker_port, reason.c_str());
      is_missed_ = true;
      return;
    }
    send_number(fresh.get(), kTrackerMagic);
    if (receive_number(fresh.get()) != kTrackerMagic) throw Disconnected("what answers there is no TVM tracker");
    connection_ = std::move(fresh);
    is_missed_ = false;
    // The tracker fills in the address of this connection.
    json::Object about;
    about.Set(ffi::String("key"), ffi::String("server:" + options_.key));
    about.Set(ffi::String("addr"), json::Array{nullptr, port_});
    must_succeed(json::Array{kUpdateInfo, about});
    say("reported to the tracker at %s:%d", options_.tracker_host.c_str(), options_.tracker_port);
  }

  void put() {
    std::random_device random;
    match_key_ = options_.key + ":0." + std::to_string(random()) + std::to_string(random());
    unused_pings_ = 0;
    must_succeed(json::Array{kPut, ffi::String(options_.key), json::Array{port_, ffi::String(match_key_)}, nullptr});
  }

  void must_succeed(const json::Array& message) {
    if (ask(message).cast<int>() != kSuccess) throw Disconnected("it refused this server");
  }

  ffi::Any ask(const json::Array& message) {
    send_text(connection_.get(), std::string(json::Stringify(message)));
    return json::Parse(receive_text(connection_.get(), 1 << 20));
  }

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
