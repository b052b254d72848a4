#include "daemon/global_store_link/global_store_channel.h"

#include <grpcpp/channel.h>

#include <string_view>
#include <utility>

#include "absl/log/log.h"
#include "absl/strings/match.h"

namespace tensorcast::daemon {

namespace {

// Several addresses are of stores that stand by for each other.
rpc::ChannelOptions OptionsFor(std::string_view address, rpc::ChannelOptions options) {
  options.stands_by = absl::StrContains(address, ',');
  return options;
}

}  // namespace

GlobalStoreChannel::GlobalStoreChannel(std::string address, rpc::ChannelOptions options, LookUp look_up)
    : address_(std::move(address)),
      options_(OptionsFor(address_, std::move(options))),
      look_up_(std::move(look_up)) {
  std::string found = look_up_(address_);
  absl::MutexLock lock(&mutex_);
  found_ = std::move(found);
  Connect(found_.empty() ? address_ : found_);
}

// Calls that run keep the stub that they began with, and end on its channel.
void GlobalStoreChannel::Connect(const std::string& address) {
  const std::shared_ptr<grpc::Channel> channel = rpc::MakeChannel(address, options_);
  stub_ = v1::GlobalStore::NewStub(channel);
  imports_stub_ = v1::Imports::NewStub(channel);
  differences_stub_ = v1::Differences::NewStub(channel);
  records_stub_ = v1::Records::NewStub(channel);
  versions_stub_ = v1::Versions::NewStub(channel);
}

std::shared_ptr<v1::Imports::Stub> GlobalStoreChannel::imports_stub() const {
  absl::MutexLock lock(&mutex_);
  return imports_stub_;
}

std::shared_ptr<v1::Differences::Stub> GlobalStoreChannel::differences_stub() const {
  absl::MutexLock lock(&mutex_);
  return differences_stub_;
}

std::shared_ptr<v1::Records::Stub> GlobalStoreChannel::records_stub() const {
  absl::MutexLock lock(&mutex_);
  return records_stub_;
}

std::shared_ptr<v1::Versions::Stub> GlobalStoreChannel::versions_stub() const {
  absl::MutexLock lock(&mutex_);
  return versions_stub_;
}

std::shared_ptr<GlobalStoreChannel::Stub> GlobalStoreChannel::stub() const {
  absl::MutexLock lock(&mutex_);
  return stub_;
}

void GlobalStoreChannel::LookUpAgain() {
  // The lock is not held here, since a name server may take its time.
  std::string found = look_up_(address_);
  absl::MutexLock lock(&mutex_);
  if (found.empty() || found == found_) return;
  LOG(INFO) << "the global stores " << address_ << " are at " << found << " now";
  Connect(found);
  found_ = std::move(found);
}

}  // namespace tensorcast::daemon
