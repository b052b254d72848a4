// The connection to the global store, or to whichever of several leads. The names of several are looked up
// when it is made and again on request, since they may come to mean other hosts. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/global_store.grpc.pb.h"
#include "proto/imports.grpc.pb.h"
#include "proto/records.grpc.pb.h"
#include "rpc/channel.h"

namespace tensorcast::daemon {

class GlobalStoreChannel {
 public:
  using Stub = v1::GlobalStore::Stub;
  using LookUp = std::function<std::string(const std::string&)>;

  // Blocks where names are to be looked up. `look_up`: as rpc::LookUpNames.
  explicit GlobalStoreChannel(std::string address, rpc::ChannelOptions options = {},
                              LookUp look_up = rpc::LookUpNames);

  // As it was given.
  const std::string& address() const { return address_; }
  // For one call: another time it may be another one.
  std::shared_ptr<Stub> stub() const;
  std::shared_ptr<v1::Imports::Stub> imports_stub() const;
  std::shared_ptr<v1::Records::Stub> records_stub() const;
  // Blocks for as long as the system's resolver does.
  void LookUpAgain();

 private:
  void Connect(const std::string& address) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string address_;
  const rpc::ChannelOptions options_;
  const LookUp look_up_;
  mutable absl::Mutex mutex_;
  std::string found_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Stub> stub_ ABSL_GUARDED_BY(mutex_);
  // On the same channel.
  std::shared_ptr<v1::Imports::Stub> imports_stub_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<v1::Records::Stub> records_stub_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tensorcast::daemon
