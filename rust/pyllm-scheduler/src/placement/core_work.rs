//! The work on one core: what it told of, and what was placed there since. Knows neither prompts nor the other cores.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::estimates::core_load::CoreLoad;
use crate::kv_layout::GroupLayout;

/// Requests that have ended and wait for the core's load report; there are more only where a core sends none.
const MAX_ENDED: usize = 4096;

/// Work is counted as in `CoreLoad`.
pub(crate) struct CoreWork {
    pub(crate) core: u32,
    pub(crate) load: Option<CoreLoad>, // none before its first report
    pub(crate) groups: Vec<GroupLayout>,
    tenants: HashMap<String, Tenant>,
    work: f64,
    active_weight: f64,                 // of tenants with work
    placed: BTreeMap<u64, PendingWork>, // requests that `load` has not
    num_reports: u64,
    // (number of the report that tells what it stored, request), of requests that have ended
    ended: VecDeque<(u64, u64)>,
}

#[derive(Default)]
struct Tenant {
    weight: f64,
    work: f64,
    num_parts: u64, // of its work: what the load has, and each request placed since
    is_told: bool,  // by the load
}

struct PendingWork {
    tenant: String,
    weight: f64,
    work: f64,
}

impl CoreWork {
    pub(crate) fn new(core: u32, block_size: u32) -> Self {
        Self {
            core,
            load: None,
            groups: groups(&[None], block_size),
            tenants: HashMap::new(),
            work: 0.0,
            active_weight: 0.0,
            placed: BTreeMap::new(),
            num_reports: 0,
            ended: VecDeque::new(),
        }
    }

    /// The core has told of its work, in which requests up to `last_request` are. Gives those that have ended and of
    /// whose blocks it has told by now.
    pub(crate) fn take_load(&mut self, last_request: Option<u64>, load: CoreLoad, block_size: u32) -> Vec<u64> {
        let first_placed = last_request.map_or(0, |last| last.saturating_add(1));
        let placed = self.placed.split_off(&first_placed);
        self.placed.clear();
        self.tenants.clear();
        (self.work, self.active_weight) = (load.others.work, load.others.weight);
        for tenant in &load.tenants {
            self.add(&tenant.tenant, tenant.weight, tenant.work);
        }
        self.tenants.values_mut().for_each(|tenant| tenant.is_told = true);
        self.groups = groups(&load.windows, block_size);
        self.load = Some(load);
        for (request, PendingWork { tenant, weight, work }) in placed {
            self.place(request, &tenant, weight, work);
        }
        self.num_reports += 1;
        let num_told = self.ended.partition_point(|&(report, _)| report <= self.num_reports);
        self.ended.drain(..num_told).map(|(_, request)| request).collect()
    }

    /// A request is placed here.
    pub(crate) fn place(&mut self, request: u64, tenant: &str, weight: f64, work: f64) {
        self.placed.insert(request, PendingWork { tenant: tenant.to_owned(), weight, work });
        let tenant_key = self.tenant_key(tenant).to_owned();
        self.add(&tenant_key, weight, work);
    }

    /// A request has ended that may have been placed here since the core's load report.
    pub(crate) fn end(&mut self, request: u64) {
        let Some(PendingWork { tenant, work, .. }) = self.placed.remove(&request) else { return };
        let tenant_key = self.tenant_key(&tenant).to_owned();
        self.work -= work;
        if let Some(tenant) = self.tenants.get_mut(&tenant_key) {
            tenant.work -= work;
            tenant.num_parts -= 1;
            if tenant.num_parts == 0 {
                self.active_weight -= tenant.weight;
                self.tenants.remove(&tenant_key);
            }
        }
    }

    /// The second report from now tells what an ended request stored; the next one may be on its way already. Returns
    /// the oldest request if too many wait.
    pub(crate) fn note_ended(&mut self, request: u64) -> Option<u64> {
        self.ended.push_back((self.num_reports + 2, request));
        let is_full = self.ended.len() > MAX_ENDED;
        if is_full { self.ended.pop_front().map(|(_, request)| request) } else { None }
    }

    /// Work that is done here until a new one of this tenant is: what it waits for, and all with its own. Under fair
    /// queueing each tenant is served by its weight, so that its own work is done once others have had their parts
    /// beside it, and never later than if all came before.
    pub(crate) fn until_done(&self, tenant: &str, weight: f64, own: f64) -> (f64, f64) {
        if !self.shares_by_tenant() {
            return (self.work, self.work + own);
        }
        let (before, active_weight) = match self.tenants.get(tenant) {
            Some(tenant) => (tenant.work, self.active_weight),
            None => (0.0, self.active_weight + weight),
        };
        let parts = active_weight / weight;
        (self.work.min(before * parts), (self.work + own).min((before + own) * parts))
    }

    /// The weight of a tenant, if the core's last load report named it.
    pub(crate) fn weight(&self, tenant: &str) -> Option<f64> {
        let told = self.tenants.get(tenant).filter(|tenant| tenant.is_told);
        told.filter(|_| self.shares_by_tenant()).map(|tenant| tenant.weight)
    }

    pub(crate) fn num_requests(&self) -> u64 {
        self.load.as_ref().map_or(0, |load| load.num_requests) + self.placed.len() as u64
    }

    fn tenant_key<'a>(&self, tenant: &'a str) -> &'a str {
        if self.shares_by_tenant() { tenant } else { "" }
    }

    fn shares_by_tenant(&self) -> bool {
        self.load.as_ref().is_some_and(|load| load.shares_by_tenant)
    }

    fn add(&mut self, tenant_key: &str, weight: f64, work: f64) {
        if !self.tenants.contains_key(tenant_key) {
            self.tenants.insert(tenant_key.to_owned(), Tenant { weight, ..Tenant::default() });
            self.active_weight += weight;
        }
        if let Some(tenant) = self.tenants.get_mut(tenant_key) {
            tenant.work += work;
            tenant.num_parts += 1;
        }
        self.work += work;
    }
}

fn groups(windows: &[Option<u32>], block_size: u32) -> Vec<GroupLayout> {
    windows.iter().map(|&window| GroupLayout::of_window(window, block_size)).collect()
}
