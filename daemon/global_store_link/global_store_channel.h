// The connection to the global store, or to the leader of several global stores. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/differences.grpc.pb.h"
#include "proto/global_store.grpc.pb.h"
#include "proto/imports.grpc.pb.h"
#include "proto/records.grpc.pb.h"
#include "proto/versions.grpc.pb.h"
#include "rpc/channel.h"

namespace tensorcast::daemon {

class GlobalStoreChannel {
 public:
  using Stub = v1::GlobalStore::Stub;
  using LookUp = std::function<std::string(const std::string&)>;

  // Blocks while it looks up names. `look_up` has the contract of rpc::LookUpNames.
  explicit GlobalStoreChannel(std::string address, rpc::ChannelOptions options = {},
                              LookUp look_up = rpc::LookUpNames);

  // The address that the constructor was given.
  const std::string& address() const { return address_; }
  // Call this for each RPC: LookUpAgain may replace the stub.
  std::shared_ptr<Stub> stub() const;
  std::shared_ptr<v1::Imports::Stub> imports_stub() const;
  std::shared_ptr<v1::Differences::Stub> differences_stub() const;
  std::shared_ptr<v1::Records::Stub> records_stub() const;
  std::shared_ptr<v1::Versions::Stub> versions_stub() const;
  // Looks up the names again. Blocks as long as the system's resolver does.
  void LookUpAgain();

 private:
  void Connect(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string address_;
  const rpc::ChannelOptions options_;
  const LookUp look_up_;
  mutable absl::Mutex mutex_;
  std::string found_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Stub> stub_ ABSL_GUARDED_BY(mutex_);
  // The other stubs use the same channel.
  std::shared_ptr<v1::Imports::Stub> imports_stub_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<v1::Differences::Stub> differences_stub_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<v1::Records::Stub> records_stub_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<v1::Versions::Stub> versions_stub_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
