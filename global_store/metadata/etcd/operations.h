// The operations of one change of the metadata in etcd, and how many of them one transaction of etcd takes.
// Several changes become one transaction if they delete nothing.
//
// Nothing here fails: a change for which `fits` is false is one that etcd would refuse. Thread-compatible.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "etcd/rpc.pb.h"

namespace tensorcast::global_store::etcd {

// etcd's --max-txn-ops, as it is by default. Operations may be nested, and count against what the level above
// leaves: so many transactions of so many operations, and what raises the sequence.
inline constexpr size_t kTxnsInTxn = 63;
inline constexpr size_t kOperations = 64;

// The last operation of a key counts, as etcd takes one only.
class Operations {
 public:
  void Put(const std::string& key, std::string value);
  void Delete(const std::string& key);
  // All keys that begin with `folder`, also those of before in this change.
  void DeleteFolder(const std::string& folder);
  void Add(const Operations& other);

  size_t count() const { return puts_.size() + deletes_.size() + folders_.size(); }
  size_t bytes() const;
  bool fits() const;
  // Whether both can be one transaction: etcd refuses one that puts what it deletes.
  bool JoinsWith(const Operations& other) const;

  // Adds the operations to the branch that the transaction takes if its comparisons hold.
  void AppendTo(etcdserverpb::TxnRequest& txn) const;

 private:
  std::map<std::string, std::string> puts_;
  std::set<std::string> deletes_;
  std::set<std::string> folders_;
};

}  // namespace tensorcast::global_store::etcd
