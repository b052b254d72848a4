// The puts and deletes of one change in etcd, and etcd's limits on a transaction. The functions do not fail.
// Thread-compatible.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "etcd/rpc.pb.h"

namespace tensorcast::global_store::etcd {

// etcd's default --max-txn-ops, 128, limits a nested transaction to 128 operations minus those of the outer
// transaction. The outer transaction has at most 64: kTxnsInTxn nested transactions and the put of the
// sequence key.
inline constexpr size_t kTxnsInTxn = 63;
inline constexpr size_t kOperations = 64;  // in a nested transaction: 128 - 64

// Of several operations on one key, only the last is sent: etcd accepts one operation for each key.
class Operations {
 public:
  void Put(const std::string& key, std::string value);
  void Delete(const std::string& key);
  // Deletes all keys that begin with `folder`, including keys that this object has put so far.
  void DeleteFolder(const std::string& folder);
  void Add(const Operations& other);

  size_t count() const { return puts_.size() + deletes_.size() + folders_.size(); }
  size_t bytes() const;
  // Whether etcd accepts the change.
  bool fits() const;
  // Whether one transaction can hold both changes: together they fit, and both consist of puts.
  bool JoinsWith(const Operations& other) const;

  // Adds the operations to the success branch of the transaction.
  void AppendTo(etcdserverpb::TxnRequest& txn) const;

 private:
  std::map<std::string, std::string> puts_;
  std::set<std::string> deletes_;
  std::set<std::string> folders_;
};

}  // namespace tensorcast::global_store::etcd
