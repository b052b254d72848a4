#include "global_store/metadata/etcd/operations.h"

#include <utility>

#include "global_store/metadata/etcd/keys.h"

namespace tensorcast::global_store::etcd {
namespace {

namespace pb = etcdserverpb;

// etcd's --max-request-bytes, as it is by default, less a margin.
constexpr size_t kMaxRequestBytes = (size_t{3} << 19) - (size_t{64} << 10);
constexpr size_t kOverhead = 32;  // of an operation's encoding

}  // namespace

void Operations::Put(const std::string& key, std::string value) {
  puts_[key] = std::move(value);
  deletes_.erase(key);
}

void Operations::Delete(const std::string& key) {
  puts_.erase(key);
  deletes_.insert(key);
}

void Operations::DeleteFolder(const std::string& folder) {
  puts_.erase(puts_.lower_bound(folder), puts_.lower_bound(EndOf(folder)));
  folders_.insert(folder);
}

void Operations::Add(const Operations& other) {
  for (const std::string& folder : other.folders_) DeleteFolder(folder);
  for (const std::string& key : other.deletes_) Delete(key);
  for (const auto& [key, value] : other.puts_) Put(key, value);
}

size_t Operations::bytes() const {
  size_t bytes = 0;
  for (const auto& [key, value] : puts_) bytes += key.size() + value.size() + kOverhead;
  for (const std::string& key : deletes_) bytes += key.size() + kOverhead;
  for (const std::string& folder : folders_) bytes += 2 * folder.size() + kOverhead;
  return bytes;
}

bool Operations::fits() const { return count() <= kTxnsInTxn * kOperations && bytes() <= kMaxRequestBytes; }

bool Operations::JoinsWith(const Operations& other) const {
  return folders_.empty() && other.folders_.empty() && deletes_.empty() && other.deletes_.empty() &&
         count() + other.count() <= kTxnsInTxn * kOperations && bytes() + other.bytes() <= kMaxRequestBytes;
}

// Deletions of folders first, each transaction with as many as it may have.
void Operations::AppendTo(pb::TxnRequest& txn) const {
  pb::TxnRequest* inner = nullptr;
  const auto next = [&]() -> pb::RequestOp* {
    if (inner == nullptr || static_cast<size_t>(inner->success_size()) == kOperations) {
      inner = txn.add_success()->mutable_request_txn();
    }
    return inner->add_success();
  };
  for (const std::string& folder : folders_) {
    pb::DeleteRangeRequest& request = *next()->mutable_request_delete_range();
    request.set_key(folder);
    request.set_range_end(EndOf(folder));
  }
  for (const std::string& key : deletes_) next()->mutable_request_delete_range()->set_key(key);
  for (const auto& [key, value] : puts_) {
    pb::PutRequest& request = *next()->mutable_request_put();
    request.set_key(key);
    request.set_value(value);
  }
}

}  // namespace tensorcast::global_store::etcd
