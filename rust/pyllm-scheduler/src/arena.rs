//! Storage with typed keys. A key may outlive its value: it carries a generation, and finds nothing once the value was
//! removed, even if another value has taken its place.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

pub(crate) struct Key<T> {
    index: u32,
    generation: u32,
    value: PhantomData<fn() -> T>,
}

pub(crate) struct Arena<T> {
    places: Vec<Place<T>>,
    vacant: Vec<u32>,
}

struct Place<T> {
    generation: u32,
    value: Option<T>,
}

impl<T> Arena<T> {
    pub(crate) fn new() -> Self {
        Self { places: Vec::new(), vacant: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.vacant.len()
    }

    pub(crate) fn insert(&mut self, value: T) -> Key<T> {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, value: None });
            (self.places.len() - 1) as u32
        });
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        Key { index, generation: place.generation, value: PhantomData }
    }

    pub(crate) fn remove(&mut self, key: Key<T>) -> Option<T> {
        let place = self.places.get_mut(key.index as usize).filter(|place| place.generation == key.generation)?;
        let value = place.value.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.vacant.push(key.index);
        Some(value)
    }

    pub(crate) fn get(&self, key: Key<T>) -> Option<&T> {
        let place = self.places.get(key.index as usize).filter(|place| place.generation == key.generation)?;
        place.value.as_ref()
    }

    pub(crate) fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize).filter(|place| place.generation == key.generation)?;
        place.value.as_mut()
    }

    pub(crate) fn contains(&self, key: Key<T>) -> bool {
        self.get(key).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key<T>, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let key = Key { index: index as u32, generation: place.generation, value: PhantomData };
            place.value.as_ref().map(|value| (key, value))
        })
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.value.as_mut())
    }
}

impl<T> Index<Key<T>> for Arena<T> {
    type Output = T;

    fn index(&self, key: Key<T>) -> &T {
        self.get(key).expect("the key's value was removed")
    }
}

impl<T> IndexMut<Key<T>> for Arena<T> {
    fn index_mut(&mut self, key: Key<T>) -> &mut T {
        self.get_mut(key).expect("the key's value was removed")
    }
}

// Derived implementations would require the same traits of `T`.
impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

/// A key that finds nothing: no value has its generation.
impl<T> Default for Key<T> {
    fn default() -> Self {
        Self { index: u32::MAX, generation: u32::MAX, value: PhantomData }
    }
}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.index, self.generation) == (other.index, other.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removed_key_finds_nothing_after_its_place_is_taken_again() {
        let mut arena = Arena::new();
        let old = arena.insert("old");
        assert_eq!(arena.remove(old), Some("old"));
        let new = arena.insert("new");
        assert_eq!((arena.get(old), arena.get(new)), (None, Some(&"new")));
        assert_eq!(arena.remove(old), None);
        assert_eq!(arena.len(), 1);
    }
}
