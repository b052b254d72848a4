// The operations of one change of the metadata in etcd, and how many operations etcd accepts in one
// transaction. Several changes become one transaction if they delete nothing.
//
// These functions do not fail. If fits() is false, the change is too large for etcd. Thread-compatible.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "etcd/rpc.pb.h"

namespace tensorcast::global_store::etcd {

// etcd's default for --max-txn-ops is 128. A nested transaction may have 128 operations minus those of the
// outer transaction. The outer transaction has at most 64: kTxnsInTxn nested transactions, and the put of
// the sequence key. So each nested transaction may have 128 - 64 = kOperations operations.
inline constexpr size_t kTxnsInTxn = 63;
inline constexpr size_t kOperations = 64;

// If a key has several operations, only the last one counts, because etcd accepts only one for each key.
class Operations {
 public:
  void Put(const std::string& key, std::string value);
  void Delete(const std::string& key);
  // Deletes all keys that begin with `folder`, including those that this change has put so far.
  void DeleteFolder(const std::string& folder);
  void Add(const Operations& other);

  size_t count() const { return puts_.size() + deletes_.size() + folders_.size(); }
  size_t bytes() const;
  bool fits() const;
  // Whether both changes can be sent as one transaction: together they fit, and neither deletes. etcd
  // refuses a transaction that puts and deletes the same key.
  bool JoinsWith(const Operations& other) const;

  // Adds the operations to the branch that the transaction takes if its comparisons hold.
  void AppendTo(etcdserverpb::TxnRequest& txn) const;

 private:
  std::map<std::string, std::string> puts_;
  std::set<std::string> deletes_;
  std::set<std::string> folders_;
};

}  // namespace tensorcast::global_store::etcd
