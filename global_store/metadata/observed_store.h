// A metadata store that says what it does: a span (MetadataStore/Put, ...), the time and the errors of each
// operation of the store behind it. A span is the child of the thread's current one.
#pragma once

#include <memory>

#include "global_store/metadata/metadata_store.h"

namespace tensorcast::global_store {

std::unique_ptr<MetadataStore> MakeObservedStore(std::unique_ptr<MetadataStore> store);

}  // namespace tensorcast::global_store
