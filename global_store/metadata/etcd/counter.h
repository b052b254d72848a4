// The encoding of counters in etcd's values (records.proto).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "etcd/kv.pb.h"
#include "etcd/records.pb.h"

namespace tensorcast::global_store::etcd {

inline std::string EncodeCounter(uint64_t value) {
  record::Counter counter;
  counter.set_value(value);
  return counter.SerializeAsString();
}

// DATA_LOSS for a value that is not a counter.
inline absl::StatusOr<uint64_t> DecodeCounter(const mvccpb::KeyValue& pair) {
  record::Counter counter;
  if (counter.ParseFromString(pair.value())) return counter.value();
  return absl::DataLossError(absl::StrCat("read counter ", pair.key(),
                                          " of etcd: the value is damaged; restore etcd from a snapshot"));
}

}  // namespace tensorcast::global_store::etcd
