// A store that reports the duration of its operations to an observer.
#pragma once

#include <memory>

#include "engine/request/observer.h"
#include "engine/store/state_store.h"

namespace polysketch {

// `observer` outlives the store and is called by the threads that use the store.
std::unique_ptr<StateStore> NewMeasuredStore(std::unique_ptr<StateStore> store,
                                             EngineObserver* observer);

}  // namespace polysketch
