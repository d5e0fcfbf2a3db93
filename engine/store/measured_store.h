// A store that tells an observer how long its operations took.
#pragma once

#include <memory>

#include "engine/request/observer.h"
#include "engine/store/state_store.h"

namespace polysketch {

// `observer` outlives the store and is called from the threads that use it.
std::unique_ptr<StateStore> NewMeasuredStore(std::unique_ptr<StateStore> store,
                                             EngineObserver* observer);

}  // namespace polysketch
