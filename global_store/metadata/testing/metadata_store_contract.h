// The contract of MetadataStore: a test suite that each backend instantiates with a function that opens one.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {

// Opens an empty store, which may use the folder; null, after a test failure, if that fails. Its backend
// lives as long as the store.
using OpenEmptyStore = std::shared_ptr<MetadataStore> (*)(const std::filesystem::path& folder);

class MetadataStoreContract : public ::testing::TestWithParam<OpenEmptyStore> {
 protected:
  void SetUp() override;
  void TearDown() override;
  DurableFacts Load();

  std::filesystem::path folder_;
  std::shared_ptr<MetadataStore> store_;
};

}  // namespace tensorcast::global_store
