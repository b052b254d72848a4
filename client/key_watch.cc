// AdminClient::WatchKeys.
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/admin.h"
#include "client/daemon_link.h"
#include "rpc/call.h"
#include "rpc/convert/convert.h"
#include "rpc/retry.h"
#include "rpc/retry_after.h"

namespace tensorcast::client {
namespace {

// One caller's watch over any number of connections. Each connection begins with every key as it is, so what
// the caller was told before is remembered: only changes go on, and keys that went while no connection
// listened are found missing once all that are there have been told.
class KeyWatch {
 public:
  KeyWatch(DaemonLink& link, RequestContext context, std::string_view prefix,
           const std::function<bool(const v1::WatchKeysResponse&)>& on_key)
      : link_(link), context_(std::move(context)), prefix_(prefix), on_key_(on_key) {}

  absl::Status Run() {
    rpc::Backoff backoff;
    while (true) {
      absl::Status status = Listen(backoff);
      if (stopped_) return absl::OkStatus();
      if (absl::Status wanted = context_.Check("watch keys"); !wanted.ok()) return wanted;
      // A server that shuts down ends or cancels its streams.
      const bool reconnect = status.ok() || absl::IsUnavailable(status) || absl::IsCancelled(status);
      if (!reconnect) return status;
      if (absl::Status slept = rpc::SleepFor(context_, rpc::WaitAfter(status, backoff), "watch keys");
          !slept.ok()) {
        return slept;
      }
    }
  }

 private:
  // One connection, until it ends. The order of its messages: every key as it is, then `listed`, then each
  // change.
  absl::Status Listen(rpc::Backoff& backoff) {
    v1::WatchKeysRequest request;
    request.set_prefix(prefix_);
    present_.clear();
    return rpc::CallServerStream(link_.global_store(), &v1::GlobalStore::Stub::WatchKeys, context_, request,
                                 [&](v1::WatchKeysResponse&& response) {
                                   // Whatever it says, the server is there.
                                   backoff.Reset();
                                   if (response.listed()) return TellMissing();
                                   present_.insert(response.key().name());
                                   return Tell(response);
                                 },
                                 {.retry_for = absl::ZeroDuration(), .what = "watch keys"});
  }

  // An error, to end the call, once the caller has had enough.
  absl::Status Tell(const v1::WatchKeysResponse& change) {
    const v1::Key& key = change.key();
    auto it = known_.find(key.name());
    if (change.deleted()) {
      // The caller never heard of it.
      if (it == known_.end()) return absl::OkStatus();
      known_.erase(it);
    } else {
      // A new connection names all keys again. The artifact is compared too: a global store that was started
      // with an empty database counts revisions from the beginning.
      const bool same = it != known_.end() && it->second.revision() == key.revision() &&
                        it->second.artifact_id() == key.artifact_id();
      if (same) return absl::OkStatus();
      known_[key.name()] = key;
    }
    stopped_ = !on_key_(change);
    return stopped_ ? absl::CancelledError("watch keys: stopped by the caller") : absl::OkStatus();
  }

  absl::Status TellMissing() {
    // Collected first: Tell takes them out of `known_`. The time of each deletion is not known; "updated" is
    // when this was noticed.
    std::vector<v1::WatchKeysResponse> deleted;
    for (const auto& [name, known] : known_) {
      if (present_.contains(name)) continue;
      v1::WatchKeysResponse& change = deleted.emplace_back();
      *change.mutable_key() = known;
      *change.mutable_key()->mutable_updated() = rpc::ToProto(absl::Now());
      change.set_deleted(true);
    }
    for (const v1::WatchKeysResponse& key : deleted) {
      if (absl::Status told = Tell(key); !told.ok()) return told;
    }
    return absl::OkStatus();
  }

  DaemonLink& link_;
  const RequestContext context_;
  const std::string prefix_;
  const std::function<bool(const v1::WatchKeysResponse&)>& on_key_;
  std::map<std::string, v1::Key> known_;  // as they were told last
  std::set<std::string> present_;         // keys that this connection has named
  bool stopped_ = false;
};

}  // namespace

absl::Status AdminClient::WatchKeys(const RequestContext& context, std::string_view prefix,
                                    const std::function<bool(const v1::WatchKeysResponse&)>& on_key) {
  return KeyWatch(*link_, OperationContext(context), prefix, on_key).Run();
}

}  // namespace tensorcast::client
