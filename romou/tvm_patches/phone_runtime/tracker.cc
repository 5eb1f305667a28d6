// SPDX-License-Identifier: Apache-2.0
//
// Speaks tvm/rpc/tracker.py's protocol.
#include "tracker.h"

#include <tvm/ffi/string.h>

#include <algorithm>
#include <random>
#include <utility>

#include "process.h"

namespace romou::phone {

namespace {

// tvm/rpc/base.py.
constexpr int32_t kTrackerMagic = 0x2f271;
constexpr int kSuccess = 0, kPut = 3, kUpdateInfo = 5, kGetPendingMatchKeys = 7;

constexpr int kTrackerRetryMs = 3000;
constexpr int kUnusedKeyPings = 3;  // after so many, a key that was given away and never came back is replaced

}  // namespace

template <typename F>
void Tracker::attempt(F work) {
  try {
    work();
  } catch (const std::exception& error) {
    if (connection_) say("lost the tracker (%s); trying again", error.what());
    connection_.reset();
    retry_at_ = now_ms() + kTrackerRetryMs;
  }
}

void Tracker::offer() {
  if (!is_wanted()) return;
  attempt([&] {
    if (!connection_) connect_now();
    if (connection_) put();
  });
}

void Tracker::ping() {
  if (!is_wanted()) return;
  if (!connection_) return offer();
  attempt([&] {
    const json::Array pending = ask(json::Array{kGetPendingMatchKeys}).cast<json::Array>();
    const bool is_pending = std::any_of(pending.begin(), pending.end(), [&](const ffi::Any& k) { return std::string(k.cast<ffi::String>()) == match_key_; });
    unused_pings_ = is_pending ? 0 : unused_pings_ + 1;
    if (unused_pings_ > kUnusedKeyPings) put();
  });
}

void Tracker::connect_now() {
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
  // The tracker fills in the address from which it sees this connection.
  json::Object about;
  about.Set(ffi::String("key"), ffi::String("server:" + options_.key));
  about.Set(ffi::String("addr"), json::Array{nullptr, port_});
  must_succeed(json::Array{kUpdateInfo, about});
  say("reported to the tracker at %s:%d", options_.tracker_host.c_str(), options_.tracker_port);
}

void Tracker::put() {
  std::random_device random;
  match_key_ = options_.key + ":0." + std::to_string(random()) + std::to_string(random());
  unused_pings_ = 0;
  must_succeed(json::Array{kPut, ffi::String(options_.key), json::Array{port_, ffi::String(match_key_)}, nullptr});
}

void Tracker::must_succeed(const json::Array& message) {
  if (ask(message).cast<int>() != kSuccess) throw Disconnected("it refused this server");
}

ffi::Any Tracker::ask(const json::Array& message) {
  send_text(connection_.get(), std::string(json::Stringify(message)));
  return json::Parse(receive_text(connection_.get(), 1 << 20));
}

}  // namespace romou::phone
