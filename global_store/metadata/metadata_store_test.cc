// The contract of MetadataStore on the backends that run in this process and its files.
#include "global_store/metadata/metadata_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "global_store/metadata/testing/metadata_store_contract.h"

namespace tensorcast::global_store::metadata_store_test {
namespace {

template <const char* kKind>
std::shared_ptr<MetadataStore> Open(const std::filesystem::path& folder) {
  auto store = OpenMetadataStore(kKind, folder / "store.db");
  EXPECT_TRUE(store.ok()) << store.status();
  return store.ok() ? *std::move(store) : nullptr;
}

constexpr char kMemory[] = "memory";
constexpr char kSqlite[] = "sqlite";

INSTANTIATE_TEST_SUITE_P(Memory, MetadataStoreContract, ::testing::Values(Open<kMemory>));
INSTANTIATE_TEST_SUITE_P(Sqlite, MetadataStoreContract, ::testing::Values(Open<kSqlite>));

TEST(OpenMetadataStore, UnknownStoreKind_IsRefusedWithValidKinds) {
  auto store = OpenMetadataStore("paper", "");
  EXPECT_EQ(store.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(store.status().message(), ::testing::HasSubstr("\"sqlite\" or \"memory\""));
}

}  // namespace
}  // namespace tensorcast::global_store::metadata_store_test
